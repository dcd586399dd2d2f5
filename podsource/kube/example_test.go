// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listerscorev1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// A cluster is an API server with the Node node-1 and one pod on it. It closes watching
// when a watch begins.
type cluster struct{ watching chan struct{} }

func (c cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == "/api/v1/nodes/node-1":
		_ = json.NewEncoder(w).Encode(corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	case r.URL.Query().Has("watch"):
		close(c.watching)
		<-r.Context().Done()
	case r.URL.Path == "/api/v1/pods":
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

// An informer watches the pods of the node, from when it is started.
func ExampleNewInformer() {
	c := cluster{make(chan struct{})}
	server := httptest.NewServer(c)
	defer server.Close()
	source, err := kube.NewInformer(client(server.URL), "node-1", kube.Options{BootID: bootID})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- source.Start(ctx) }() // or manager.Add(source)
	<-c.watching                               // the hook of an agent retries until there is a list

	answer, err := source.Pods(ctx)
	fmt.Println(len(answer.Pods), !answer.AsOf.IsZero(), err)
	stop()
	fmt.Println(<-ended)
	// Output:
	// 1 true <nil>
	// <nil>
}

// An agent that has an informer of pods already. With a factory of informers,
// Core().V1().Pods() has both the Informer() and the Lister().
func ExampleFromLister() {
	server := httptest.NewServer(cluster{})
	defer server.Close()
	onNode := fields.OneTermEqualSelector("spec.nodeName", "node-1") // and no other filter
	informer := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(client(server.URL).RESTClient(), "pods", "", onNode),
		&corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	source, err := kube.FromLister(listerscorev1.NewPodLister(informer.GetIndexer()), kube.InStep(informer), "node-1", kube.Options{
		BootID: bootID,
		GetNode: func(ctx context.Context, name string) (*corev1.Node, error) {
			return client(server.URL).Nodes().Get(ctx, name, metav1.GetOptions{})
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = source.Pods(context.Background())
	fmt.Println(err)
	// Output:
	// node node-1: list of pods is incomplete: the informer of pods is not known to be in sync with the API server yet; wait about a minute, for its next event or bookmark
}

// Options for an old control plane, and for an agent that knows its Node object.
func ExampleOptions() {
	server := httptest.NewServer(cluster{})
	defer server.Close()

	_, err := kube.New(client(server.URL), "node-1", kube.Options{
		PageSize:   100,
		WatchCache: true, // answered from the API server's memory
		NodeUID:    "7c9e6679",
	})
	fmt.Println(err)
	_, err = kube.New(client(server.URL), "node-1", kube.Options{WatchCache: true, SkipNodeCheck: true})
	fmt.Println(err)
	// Output:
	// <nil>
	// making a kube source: Options.WatchCache needs the Node for the age of an answer; leave out SkipNodeCheck
}

// A resourceVersion is a fake informer. Each event of a watch changes the version.
type resourceVersion struct{ version string }

func (resourceVersion) HasSynced() bool                   { return true }
func (v resourceVersion) LastSyncResourceVersion() string { return v.version }

// The age of an informer's pods is known once its resource version has changed.
func ExampleInStep() {
	informer := &resourceVersion{"10"} // a cache.SharedIndexInformer in an agent
	var synced kube.Synced = informer
	asOf := kube.InStep(synced)
	fmt.Println(asOf().IsZero())
	informer.version = "11"
	fmt.Println(asOf().IsZero(), synced.HasSynced(), synced.LastSyncResourceVersion())
	// Output:
	// true
	// false true 11
}
