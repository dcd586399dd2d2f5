// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	manifests = "../../hostlocal-gc/deploy" // under test
	plain     = "resources: [path/to/deploy]\n"
	monitored = plain + "components: [path/to/deploy/monitoring]\n"
)

// build returns the objects of a kustomization, by kind, and their names as "all". An empty kustomization is that of
// the manifests with the components that are commented out.
func build(t *testing.T, kustomization string) map[string]any {
	t.Helper()
	dir := t.TempDir()
	err := os.CopyFS(filepath.Join(dir, "path/to/deploy"), os.DirFS(manifests))
	if kustomization == "" {
		dir = filepath.Join(dir, "path/to/deploy")
		kustomization = strings.NewReplacer("# components:", "components:", "# - ", "- ").Replace(read(t, "kustomization.yaml"))
	}
	if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600)); err != nil {
		t.Fatal(err)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("%s\n%v", kustomization, err)
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	if err := monitoringv1.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	objects, all := make(map[string]any), []string{}
	for _, object := range made.Resources() {
		kind := object.GetKind()
		if _, _, err := strict.Decode([]byte(object.MustYaml()), nil, nil); err != nil {
			t.Errorf("%v\n%s", err, object.MustYaml())
		}
		if object.GetName() == "hostlocal-gc-dashboard" {
			kind = "Dashboard"
		}
		if objects[kind], err = object.Map(); err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.TrimPrefix(object.GetNamespace()+"/"+kind, "/"))
	}
	slices.Sort(all)
	objects["all"] = strings.Join(all, " ")
	return objects
}

// A file with several patches that delete makes kubectl 1.32 panic.
func TestOneDeletionAFile(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "grep", "-rc", "^$patch: delete", manifests).CombinedOutput()
	if found := submatches(`(?m)(.*:([2-9]|\d\d+))$`, string(out)); len(found) > 0 || len(out) == 0 {
		t.Errorf("these files have several: %q %v", found, err)
	}
}

// What kustomize builds. A kustomization is known by words, and a row is about those with all its words.
func TestManifests(t *testing.T) {
	kustomizations := map[string]string{
		"plain api loopback": plain, "plain api monitored": monitored, "no-api monitored in-place": "",
		"no-api loopback":  plain + "components: [path/to/deploy/no-api]\n",
		"no-api monitored": plain + "components: [path/to/deploy/no-api, path/to/deploy/monitoring]\n",
	}
	readme := submatches("(?s)```yaml\n(.*?)```", read(t, "README.md"))
	for i, name := range []string{"api image", "api ranges", "api cri-o", "no-api loopback", "agents", "monitored release"} {
		kustomizations["README "+name] = readme[i]
	}
	shortened := strings.NewReplacer("agent.", ".DaemonSet.spec.template.spec.containers[0].", "pod.", ".DaemonSet.spec.template.spec.")
	for name, kustomization := range kustomizations {
		objects := build(t, kustomization)
		for _, row := range expectations {
			unknown := func(word string) bool { return !slices.Contains(strings.Fields(name), word) }
			if slices.ContainsFunc(strings.Fields(row.in), unknown) {
				continue
			}
			var text strings.Builder
			j := jsonpath.New(row.path).AllowMissingKeys(true)
			if err := errors.Join(j.Parse(shortened.Replace(row.path)), j.Execute(&text, objects)); err != nil {
				t.Fatalf("%s: %v", row.path, err)
			}
			if got := strings.ReplaceAll(text.String(), `"`, ""); got != row.want {
				t.Errorf("%s: %s: %s is\n%s, want\n%s", name, row.reason, row.path, got, row.want)
			}
		}
	}
}

const (
	args   = "{agent.args[*]}"
	ownPod = " --require-pod=$(POD_NAMESPACE)/$(POD_NAME)"
	env    = "{range agent.env[*]}{.name}={.value}{.valueFrom.fieldRef.fieldPath} {end}"
)

// expectations are values of JSON paths, without quotes.
var expectations = []struct{ in, path, want, reason string }{
	{"plain loopback", "{.all}", "ClusterRole ClusterRoleBinding " +
		"kube-system/DaemonSet kube-system/ServiceAccount", "no more"},
	{"agents", "{.all}", "ClusterRole ClusterRoleBinding agents/DaemonSet agents/ServiceAccount", "all of it moves"},
	{"no-api loopback", "{.all}", "kube-system/DaemonSet kube-system/ServiceAccount", "no object grants a right"},
	{"no-api monitored", "{.all}", "kube-system/DaemonSet kube-system/Dashboard " +
		"kube-system/PodMonitor kube-system/PrometheusRule kube-system/ServiceAccount", "the components go together"},
	{"agents", "{.ClusterRoleBinding.subjects[0].namespace}", "agents", "the account moves"},
	{"plain", "{.ClusterRoleBinding.subjects}", "[{kind:ServiceAccount,name:hostlocal-gc,namespace:kube-system}]", "nobody else has rights"},
	{"api", "{.ClusterRoleBinding.roleRef.kind}", "ClusterRole", "it has the rights"},
	{"api", "{.ClusterRole.rules[0]}", "{apiGroups:[],resources:[pods],verbs:[list]}", "the API server as source"},
	{"api", "{.ClusterRole.rules[1:]}{.ClusterRole.aggregationRule}", "{apiGroups:[],resources:[nodes],verbs:[get]}", "the same source"},

	{"", "{pod.hostNetwork} {pod.dnsPolicy}", "true Default", "it starts on a node without a free address, and without the cluster's DNS"},
	{"", "{pod.tolerations} {pod.priorityClassName}", "[{operator:Exists}] system-node-critical", "tainted and full nodes leak, too"},
	{"", "{pod.nodeSelector}{pod.affinity}", "{kubernetes.io/os:linux}", "every node of Linux leaks"},
	{"", "{pod.terminationGracePeriodSeconds}", "5", "it ends within a second"},
	{"", "{.DaemonSet.spec.minReadySeconds} {.DaemonSet.spec.updateStrategy}", "30 {rollingUpdate:{maxUnavailable:10%},type:RollingUpdate}",
		"a wrong setting stops at a tenth of the nodes"},
	{"api", "{agent.resources}", "{limits:{memory:128Mi},requests:{cpu:10m,memory:32Mi}}", "if it is throttled under the lock, ADDs wait"},
	{"no-api", "{agent.resources}", "{limits:{memory:128Mi},requests:{cpu:50m,memory:32Mi}}", "the same, and what netns takes"},
	{"", "{pod.containers[*].name}{pod.initContainers}", "agent", "there is nothing but the agent"},
	{"", "{pod.securityContext}{pod.hostIPC}{pod.shareProcessNamespace}", "", "nothing weakens the container's own context"},
	{"api", "{pod.hostPID}{agent.securityContext}", "{allowPrivilegeEscalation:false,capabilities:{drop:[ALL]},privileged:false," +
		"readOnlyRootFilesystem:true,runAsGroup:0,runAsUser:0,seccompProfile:{type:RuntimeDefault}}", "it is confined"},
	{"no-api", "{pod.hostPID} {agent.securityContext}", "true {privileged:true,readOnlyRootFilesystem:true,runAsGroup:0,runAsUser:0}",
		"netns needs this"},
	{"api", "{pod.serviceAccountName} {pod.automountServiceAccountToken}", "hostlocal-gc true", "it has the rights"},
	{"no-api", "{pod.serviceAccountName} {pod.automountServiceAccountToken}", "hostlocal-gc false", "it needs no rights"},
	{"", "{.ServiceAccount.metadata.name} {.ServiceAccount.automountServiceAccountToken}", "hostlocal-gc false", "the agent's account"},
	{"plain", "{agent.volumeMounts}", "[{mountPath:/var/lib/cni/networks,name:networks},{mountPath:/run/hostlocal-gc,name:memory},{mountPath:/run/containerd,name:containerd," +
		"readOnly:true},{mountPath:/var/lib/kubelet/pods-api,name:kubelet-pods,readOnly:true}]", "it writes reservations and its memory only"},
	{"no-api", "{agent.volumeMounts}", "[{mountPath:/var/lib/cni/results,name:results,readOnly:true},{mountPath:/var/lib/cni/networks," +
		"name:networks},{mountPath:/run/hostlocal-gc,name:memory},{mountPath:/run/containerd,name:containerd,readOnly:true}]", "libcni's cache instead of the kubelet's socket"},
	{"plain", "{pod.volumes[0]}", "{hostPath:{path:/var/lib/cni/networks,type:DirectoryOrCreate},name:networks}", "the reservations"},
	{"plain", "{pod.volumes[2:]}", "{hostPath:{path:/run/containerd,type:Directory},name:containerd} " +
		"{hostPath:{path:/var/lib/kubelet/pods-api,type:DirectoryOrCreate},name:kubelet-pods}", "cri and kubelet"},
	{"no-api", "{pod.volumes[0]}", "{hostPath:{path:/var/lib/cni/results,type:DirectoryOrCreate},name:results}", "cnicache"},
	{"no-api", "{pod.volumes[1:].hostPath.path}", "/var/lib/cni/networks /run/hostlocal-gc /run/containerd", "no others"},

	{"plain loopback", args, "agent --source=kubelet --source=kube --source=cri" + ownPod, "usual"},
	{"no-api loopback", args, "agent --source=netns --source=cnicache --source=cri" + ownPod, "no API"},
	{"monitored", "{agent.args[5]}", "--metrics-listen=[$(NODE_IP)]:9777", "metrics are at the node's address"},
	{"loopback", env, "NODE_NAME=spec.nodeName POD_NAME=metadata.name POD_NAMESPACE=metadata.namespace " +
		"GOMEMLIMIT=80MiB ", "the arguments refer to them"},
	{"monitored", "{agent.env[0].name}={agent.env[0].valueFrom.fieldRef.fieldPath}", "NODE_IP=status.hostIP", "as does this one"},
	{"", "{agent.livenessProbe.httpGet}", "{host:127.0.0.1,path:/healthz,port:9776}", "the default of --listen"},
	{"", "{agent.readinessProbe.httpGet}", "{host:127.0.0.1,path:/readyz,port:9776}", "the default of --listen"},
	{"", "{.DaemonSet.spec.template.metadata.labels}", "{app.kubernetes.io/name:hostlocal-gc}", "selectors find the pods"},
	{"loopback", "{agent.ports}", "", "nothing is served outside of the node"},
	{"monitored", "{agent.ports}", "[{containerPort:9777,hostPort:9777,name:metrics}]", "the monitor uses this port"},
	{"monitored", "{.PodMonitor.spec}", "{podMetricsEndpoints:[{interval:30s,path:/metrics,port:metrics,relabelings:[{action:replace," +
		"sourceLabels:[__meta_kubernetes_pod_node_name],targetLabel:instance},{action:replace,replacement:hostlocal-gc,targetLabel:job}]}]," +
		"selector:{matchLabels:{app.kubernetes.io/name:hostlocal-gc}}}", "alerts use this job, and nodes as instances"},
	{"monitored", `{.PrometheusRule.spec.groups[0].rules[?(@.alert=="HostlocalGCUnreserved")].annotations.description}`,
		"/debug/hostlocal-gc names addresses and pods. Cordon the node, then run hostlocal-gc repair there.", "what check says"},
	{"monitored", "{.Dashboard.metadata.labels.grafana_dashboard}", "1", "Grafana's sidecar selects it"},

	{"image", "{agent.image} {agent.args[5]}", "registry.example/team/hostlocal-gc:1.0 --network=cbr0", "README, three steps"},
	{"cri-o", args, "agent --source=kubelet --source=kube --source=cri:/run/crio/crio.sock" + ownPod, "README, runtime"},
	{"cri-o", "{pod.volumes[*].name} {agent.volumeMounts[*].name}", "crio networks memory kubelet-pods crio networks memory kubelet-pods", "README"},
	{"cri-o", "{pod.volumes[0].hostPath.path} {agent.volumeMounts[0]}", "/run/crio {mountPath:/run/crio,name:crio,readOnly:true}", "README"},
	{"ranges", args, "agent --source=kubelet --source=kube --source=cri" + ownPod + " --network=podnet --network=storage " +
		"--cni-conf=/etc/cni/net.d/10-podnet.conflist", "README, ranges"},
	{"ranges", "{agent.volumeMounts[0]}", "{mountPath:/etc/cni/net.d,name:cni,readOnly:true}", "README, ranges"},
	{"release", "{.PodMonitor.metadata.labels.release} {.PrometheusRule.metadata.labels.release}", "prometheus prometheus", "README, metrics"},
}

// read returns a file of the manifests.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// submatches returns the first group of each match.
func submatches(pattern, text string) (found []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

// copied makes a repository with the files that git tracks or would add, in one tagged commit, and removes what is not
// sent to the builder. If git tracks such a file, the version says that the tree was modified.
const copied = `git init -q .
git --git-dir=.git --work-tree="$$REPOSITORY" add -A
git -c user.name=test -c user.email=test@example.com -c commit.gpgsign=false commit -qm copy
git tag examples/v0.9.8
git reset -q --hard
rm -rf $$(cat examples/hostlocal-gc/deploy/Dockerfile.dockerignore)`

// The build stage makes the command for each architecture, with the version of the tag. The image contains the command
// in a directory of PATH, and nothing else: no user, since reservations and sockets belong to root.
func TestImage(t *testing.T) {
	repository, err := filepath.Abs("../../..")
	mod, err2 := os.ReadFile("../../go.mod")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	goVersion := submatches(`(?m)^go (\d+\.\d+)`, string(mod))[0]
	// A shell runs the steps. Others than these are unknown commands.
	script := read(t, "Dockerfile")
	for _, r := range [][2]string{
		{`(?m)\\\n|^#.*\n`, ""},
		{`ARG GO_IMAGE=docker.io/library/golang:` + goVersion + `\nFROM --platform=\$BUILDPLATFORM \$GO_IMAGE AS build\n`, ""}, // this compiler
		{`(?m)^WORKDIR (.*)`, `mkdir -p "$$ROOT$1"; cd "$$ROOT$1"`},
		{`COPY \. \.`, copied},
		{`ARG TARGETOS TARGETARCH`, `export TARGETOS=linux TARGETARCH="$$ARCH"`},
		{`(?m)^ENV `, "export "},
		{`(?m)^RUN (--mount=\S+ )*`, ""},
	} {
		script = regexp.MustCompile(r[0]).ReplaceAllString(script, r[1])
	}
	script, image, _ := strings.Cut(script, "FROM scratch\n")
	want := "COPY --from=build /build/hostlocal-gc /usr/local/bin/hostlocal-gc\nENTRYPOINT [\"/usr/local/bin/hostlocal-gc\"]\n"
	if diff := cmp.Diff(want, image); diff != "" {
		t.Errorf("what the image is made of (-want +got):\n%s", diff)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		root := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
		// The toolchain in the image is no newer than the image's tag.
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOFLAGS=", "GOWORK=", "CGO_ENABLED=", "TARGETOS=", "TARGETARCH=",
			"ARCH="+arch, "ROOT="+root, "REPOSITORY="+repository)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s\n%v\n%s", script, err, out)
		}
		binary := filepath.Join(root, "build/hostlocal-gc")
		info, err := buildinfo.ReadFile(binary)
		linked, err2 := elf.Open(binary)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		defer linked.Close()
		if linked.Section(".symtab") != nil || linked.Section(".debug_info") != nil {
			t.Errorf("%s: it is not stripped", arch)
		}
		for _, want := range []string{"/examples\tv0.9.8\t", "\tGOOS=linux\n", "\tGOARCH=" + arch + "\n", "\tCGO_ENABLED=0\n"} {
			if !strings.Contains(info.String(), want) {
				t.Errorf("%s: it is not built with %q:\n%s", arch, want, info)
			}
		}
		if arch == runtime.GOARCH {
			checkAgent(t, binary)
		}
	}
}

// checkAgent asserts that each argument in the manifests and their texts is a flag of the agent, which refuses others,
// and that the probes use its default address.
func checkAgent(t *testing.T, binary string) {
	t.Helper()
	help, err := exec.CommandContext(t.Context(), binary, "agent", "--help").Output()
	if err != nil || !regexp.MustCompile(`\(default\s+"127.0.0.1:9776"\)`).Match(help) {
		t.Fatalf("the agent does not listen at 127.0.0.1:9776 by default: %v\n%s", err, help)
	}
	flags := submatches(`(?m)^ +(?:-\w, )?--([\w-]+)`, string(help))
	texts, err2 := exec.CommandContext(t.Context(), "grep", "-rhoE", "(^ +- |value: '?)--[a-z-]+=", manifests).Output()
	source, err3 := os.ReadFile(filepath.Join(manifests, "../internal/agent/metrics.go"))
	if err := errors.Join(err2, err3); err != nil {
		t.Fatal(err)
	}
	// used by scenarios
	for _, want := range []string{`"version":`, "_build_info", "_dry_run", "_findings", "_configuration_info", "_leaks_total"} {
		if !strings.Contains(string(source), want) {
			t.Errorf("the agent has no %s among its metrics", want)
		}
	}
	for _, flag := range submatches(`--([a-z-]+)=`, string(texts)) {
		if !slices.Contains(flags, flag) {
			t.Errorf("the agent has no flag --%s", flag)
		}
	}
}
