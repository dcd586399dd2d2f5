// Kept out of go.work: its tests run containerd and other programs, which takes minutes.
module github.com/hostlocal-gc/hostlocal-gc/examples/incidents

go 1.26.0

require (
	github.com/containernetworking/plugins v1.9.0
	github.com/hostlocal-gc/hostlocal-gc v0.1.0
)

require (
	github.com/alexflint/go-filemutex v1.3.0 // indirect
	golang.org/x/sys v0.35.0 // indirect
)

replace github.com/hostlocal-gc/hostlocal-gc => ../..
