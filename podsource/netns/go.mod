module github.com/hostlocal-gc/hostlocal-gc/podsource/netns

go 1.24.2

require (
	github.com/google/go-cmp v0.7.0
	github.com/hostlocal-gc/hostlocal-gc v0.1.0
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.35.0
	k8s.io/apimachinery v0.28.0
)

require (
	github.com/alexflint/go-filemutex v1.3.0 // indirect
	github.com/containernetworking/plugins v1.9.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
)

replace github.com/hostlocal-gc/hostlocal-gc => ../..
