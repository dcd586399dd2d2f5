// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// A cluster is an API server with the Node node-1 and one pod on it.
type cluster struct{}

func (cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/api/v1/nodes/node-1":
		_ = json.NewEncoder(w).Encode(corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	case "/api/v1/pods":
		web := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "6ba7b810"},
			Spec: corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.2"}}}}
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: []corev1.Pod{web}})
	default:
		http.NotFound(w, r)
	}
}

// client returns the CoreV1() of a clientset.
func client(url string) *typedcorev1.CoreV1Client {
	return typedcorev1.NewForConfigOrDie(&rest.Config{Host: url})
}

// bootID is the boot ID of the node's kernel. An agent on the node does not need this option.
func bootID() (string, error) { return "boot-1", nil }

// Every pass asks the API server for the Node and the pods bound to it.
func ExampleNew() {
	server := httptest.NewServer(cluster{})
	defer server.Close()
	var api kube.Client = client(server.URL) // clientset.CoreV1()
	source, err := kube.New(api, "node-1", kube.Options{BootID: bootID})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := source.Pods(context.Background())
	for _, p := range answer.Pods {
		fmt.Println(p.NamespacedName, p.IPs)
	}
	fmt.Println(err)

	_, err = kube.New(api, "Node-1", kube.Options{})
	fmt.Println(err != nil)
	// Output:
	// default/web [10.244.1.2]
	// <nil>
	// true
}

// An agent that has an informer of pods already. With a factory of informers that is
// Core().V1().Pods().Informer().
func ExampleFromLister() {
	server := httptest.NewServer(cluster{})
	defer server.Close()
	onNode := fields.OneTermEqualSelector("spec.nodeName", "node-1") // and no other filter
	list := cache.NewListWatchFromClient(client(server.URL).RESTClient(), "pods", "", onNode)
	var informer kube.Informer = cache.NewSharedIndexInformer(list, &corev1.Pod{}, 0, nil)
	source, err := kube.FromLister(informer, "node-1", kube.Options{
		BootID: bootID,
		GetNode: func(ctx context.Context, name string) (*corev1.Node, error) { // or that of a lister of Nodes
			return client(server.URL).Nodes().Get(ctx, name, metav1.GetOptions{})
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = source.Pods(context.Background())
	fmt.Println(errors.Is(err, podsource.ErrIncomplete))
	// Output: true
}

// Options for an agent that knows its Node object.
func ExampleOptions() {
	_, err := kube.New(client("http://127.0.0.1"), "node-1", kube.Options{
		PageSize: 100,
		NodeUID:  "7c9e6679",
	})
	fmt.Println(err)
	_, err = kube.New(client("http://127.0.0.1"), "node-1", kube.Options{PageSize: -1, SkipNodeCheck: true})
	fmt.Println(err)
	// Output:
	// <nil>
	// making a kube source: Options.PageSize is -1; it must not be negative
}
