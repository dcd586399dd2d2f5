module github.com/hostlocal-gc/hostlocal-gc/podsource/node

go 1.24.2

require (
	github.com/go-logr/logr v1.4.3
	github.com/hostlocal-gc/hostlocal-gc v0.1.0
	github.com/hostlocal-gc/hostlocal-gc/podsource/cri v0.1.0
	github.com/hostlocal-gc/hostlocal-gc/podsource/kube v0.1.0
	github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet v0.1.0
	github.com/hostlocal-gc/hostlocal-gc/podsource/netns v0.1.0
	k8s.io/apimachinery v0.28.0
	k8s.io/client-go v0.28.0
)

require (
	github.com/Microsoft/go-winio v0.6.2 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/emicklei/go-restful/v3 v3.9.0 // indirect
	github.com/go-openapi/jsonpointer v0.19.6 // indirect
	github.com/go-openapi/jsonreference v0.20.2 // indirect
	github.com/go-openapi/swag v0.22.3 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/google/gnostic-models v0.6.8 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/google/gofuzz v1.2.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod v0.1.0 // indirect
	github.com/josharian/intern v1.0.0 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/mailru/easyjson v0.7.7 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.2 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/net v0.43.0 // indirect
	golang.org/x/oauth2 v0.23.0 // indirect
	golang.org/x/sys v0.35.0 // indirect
	golang.org/x/term v0.34.0 // indirect
	golang.org/x/text v0.28.0 // indirect
	golang.org/x/time v0.3.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20241015192408-796eee8c2d53 // indirect
	google.golang.org/grpc v1.69.0 // indirect
	google.golang.org/protobuf v1.36.7 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
	k8s.io/api v0.28.0 // indirect
	k8s.io/cri-api v0.28.0 // indirect
	k8s.io/klog/v2 v2.100.1 // indirect
	k8s.io/kube-openapi v0.0.0-20230717233707-2695361300d9 // indirect
	k8s.io/utils v0.0.0-20230406110748-d93618cff8a2 // indirect
	sigs.k8s.io/json v0.0.0-20221116044647-bc3834ca7abd // indirect
	sigs.k8s.io/structured-merge-diff/v4 v4.2.3 // indirect
	sigs.k8s.io/yaml v1.3.0 // indirect
)

replace (
	github.com/hostlocal-gc/hostlocal-gc => ../..
	github.com/hostlocal-gc/hostlocal-gc/podsource/cri => ../cri
	github.com/hostlocal-gc/hostlocal-gc/podsource/kube => ../kube
	github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod => ../kube/kubepod
	github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet => ../kubelet
	github.com/hostlocal-gc/hostlocal-gc/podsource/netns => ../netns
)
