module github.com/hostlocal-gc/hostlocal-gc

go 1.25.0

require (
	github.com/containernetworking/plugins v1.9.0
	github.com/go-logr/logr v1.4.3
	k8s.io/apimachinery v0.34.1
)

require (
	github.com/alexflint/go-filemutex v1.3.0 // indirect
	golang.org/x/sys v0.35.0 // indirect
)
