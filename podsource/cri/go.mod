module github.com/hostlocal-gc/hostlocal-gc/podsource/cri

go 1.25.0

require (
	github.com/Microsoft/go-winio v0.6.2
	github.com/go-logr/logr v1.4.3
	github.com/google/go-cmp v0.7.0
	github.com/hostlocal-gc/hostlocal-gc v0.0.0
	google.golang.org/grpc v1.72.1
	google.golang.org/protobuf v1.36.7
	k8s.io/apimachinery v0.34.1
	k8s.io/cri-api v0.34.1
)

require (
	github.com/alexflint/go-filemutex v1.3.0 // indirect
	github.com/containernetworking/plugins v1.9.0 // indirect
	golang.org/x/net v0.43.0 // indirect
	golang.org/x/sys v0.35.0 // indirect
	golang.org/x/text v0.28.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250303144028-a0af3efb3deb // indirect
)

replace github.com/hostlocal-gc/hostlocal-gc => ../..
