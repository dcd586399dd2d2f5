// Kept out of go.work: its tests run containerd and other programs, which takes minutes.
module github.com/hostlocal-gc/hostlocal-gc/examples/incidents

go 1.26.0
