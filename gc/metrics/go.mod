module github.com/hostlocal-gc/hostlocal-gc/gc/metrics

go 1.24.2

require (
	github.com/google/go-cmp v0.7.0
	github.com/hostlocal-gc/hostlocal-gc v0.1.0
	github.com/prometheus/client_golang v1.19.1
	github.com/prometheus/client_model v0.5.0
)

require (
	github.com/alexflint/go-filemutex v1.3.0 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/containernetworking/plugins v1.9.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/prometheus/common v0.48.0 // indirect
	github.com/prometheus/procfs v0.12.0 // indirect
	golang.org/x/sys v0.35.0 // indirect
	google.golang.org/protobuf v1.36.7 // indirect
	k8s.io/apimachinery v0.28.0 // indirect
)

replace github.com/hostlocal-gc/hostlocal-gc => ../..
