module github.com/hostlocal-gc/hostlocal-gc/podsource/cri

go 1.24.2

require (
	github.com/Microsoft/go-winio v0.6.2
	github.com/go-logr/logr v1.4.3
	github.com/google/go-cmp v0.7.0
	github.com/hostlocal-gc/hostlocal-gc v0.1.0
	google.golang.org/grpc v1.69.0
	k8s.io/apimachinery v0.28.0
	k8s.io/cri-api v0.28.0
	sigs.k8s.io/yaml v1.3.0
)

require (
	github.com/alexflint/go-filemutex v1.3.0 // indirect
	github.com/containernetworking/plugins v1.9.0 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/kr/text v0.2.0 // indirect
	golang.org/x/net v0.43.0 // indirect
	golang.org/x/sys v0.35.0 // indirect
	golang.org/x/text v0.28.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20241015192408-796eee8c2d53 // indirect
	google.golang.org/protobuf v1.36.7 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
)

replace github.com/hostlocal-gc/hostlocal-gc => ../..
