module github.com/hostlocal-gc/hostlocal-gc/podsource/netns

go 1.25.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/hostlocal-gc/hostlocal-gc v0.0.0
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.35.0
)

require (
	github.com/vishvananda/netns v0.0.5 // indirect
	k8s.io/apimachinery v0.34.1 // indirect
)

replace github.com/hostlocal-gc/hostlocal-gc => ../..
