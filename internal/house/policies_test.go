package house

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
)

const (
	aService = `
apiVersion: v1
kind: Service
metadata:
  namespace: default
  name: web
  labels: {app: web}
  annotations: {holdfast.dev/assigned: for=default/web, example.org/note: mine}
  finalizers: [holdfast.dev/address, service.kubernetes.io/load-balancer-cleanup, example.org/other]
spec: {type: LoadBalancer}
status:
  loadBalancer: {ingress: [{ip: 192.0.2.1}]}
  conditions:
    - {type: holdfast.dev/AddressAssigned, status: "True", reason: Assigned, message: has it, lastTransitionTime: "2026-01-01T00:00:00Z"}
    - {type: holdfast.dev/AnnouncedL2, status: "True", reason: Announced, message: on w1, lastTransitionTime: "2026-01-01T00:00:00Z"}
    - {type: example.org/Other, status: "True", reason: Other, message: of others, lastTransitionTime: "2026-01-01T00:00:00Z"}
`
	aPod = `
apiVersion: v1
kind: Pod
metadata: {namespace: default, name: web, labels: {app: web}, finalizers: [example.org/other]}
spec: {nodeName: w1, containers: [{name: web, image: web}]}
status:
  phase: Running
  podIP: 10.0.0.1
  podIPs: [{ip: 10.0.0.1}]
  containerStatuses: [{name: web, ready: true, image: web, imageID: web, restartCount: 0}]
  conditions:
    - {type: Ready, status: "True", observedGeneration: 3, lastTransitionTime: "2026-01-01T00:00:00Z"}
    - {type: ContainersReady, status: "True"}
`
	withdrawnPod = `
apiVersion: v1
kind: Pod
metadata: {namespace: default, name: web}
status:
  conditions:
    - {type: Ready, status: "False", reason: HoldfastNodeUnreachable, message: no speaker reaches w1}
`
	deadPod = `
apiVersion: v1
kind: Pod
metadata: {namespace: default, name: web}
status:
  conditions:
    - {type: Ready, status: "False", reason: ContainersNotReady, message: "containers with unready status: [web]"}
`
	aState = `
apiVersion: holdfast.dev/v1beta1
kind: SpeakerState
metadata: {name: w1}
status: {conditions: [{type: EndpointsWithdrawn, status: "False", reason: Reachable, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`
)

// condition is a patch of the status by one condition.
func condition(kind, status, reason string) string {
	return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":%q,"message":"test","lastTransitionTime":"2026-02-01T00:00:00Z"}]}}`,
		kind, status, reason)
}

// policyTest is a write by one of our accounts, and a part of the refusal, "" if it is admitted.
type policyTest struct{ name, object, patch, want string }

func (tt policyTest) run(t *testing.T, decide verdict, account, node string) {
	t.Helper()
	t.Run(account+"/"+tt.name, func(t *testing.T) {
		err := decide(t, write{account, node, object(t, tt.object), tt.patch})
		if tt.want != "" && errors.Is(err, errIgnored) {
			return
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	})
}

const rbac = "../../config/rbac/rbac.yaml"

func generatedPolicies(t *testing.T) verdict {
	t.Helper()
	return newPolicies(t, read(t, rbac))
}

// TestSpeakerPolicies: a speaker writes its conditions and its own SpeakerState.
func TestSpeakerPolicies(t *testing.T) { speakerPolicies(t, generatedPolicies(t)) }

func speakerPolicies(t *testing.T, decide verdict) {
	for _, tt := range []policyTest{
		{"nothing", aService, `{}`, ""},
		{"own condition", aService, condition("holdfast.dev/AnnouncedL2", "False", "NoNode"), ""},
		{"own record", aService, condition("holdfast.dev/Announcers", "True", "Announced"), ""},
		{
			"addresses",
			aService, `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.2"}]}}}`, "may not change the addresses",
		},
		{"no addresses", aService, `{"status":{"loadBalancer":null}}`, "may not change the addresses"},
		{
			"another's condition",
			aService, condition("holdfast.dev/AddressAssigned", "False", "Test"),
			"AnnouncedBGP and FilterEnforced only",
		},
		{
			"an annotation",
			aService, `{"metadata":{"annotations":{"holdfast.dev/assigned":null}}}`, "may not change the metadata",
		},
		{"a finalizer", aService, `{"metadata":{"finalizers":null}}`, "may not change the metadata"},
		{"a label", aService, `{"metadata":{"labels":{"app":"other"}}}`, "may not change the metadata"},
		{"spec", aService, `{"spec":{"externalIPs":["192.0.2.2"]}}`, "conditions of a Service only"},
		{
			"a long text that every node reads",
			aService, strings.Replace(condition("holdfast.dev/Announcers", "True", "Announced"), `"test"`,
				`"`+strings.Repeat("x", 32000)+`"`, 1), "may have 8192 letters",
		},
		{
			"own state",
			aState,
			`{"status":{"conditions":[{"type":"EndpointsWithdrawn","status":"False","reason":"Reachable","message":"",` +
				`"lastTransitionTime":"2026-01-01T00:00:00Z"}],"unreachable":[]}}`, "",
		},
		{"conditions of the own state", aState, `{"status":{}}`, "may not change the conditions"},
	} {
		tt.run(t, decide, "holdfast-system:holdfast-speaker", "w1")
	}
	another := policyTest{"another's state", aState, `{}`, "of its own node only"}
	another.run(t, decide, "holdfast-system:holdfast-speaker", "w2")
	another.run(t, decide, "holdfast-system:holdfast-speaker", "")
}

// TestSpeakerMakesItsState: no account could remove a finalizer with the Node, and another's Node waits for nothing.
func TestSpeakerMakesItsState(t *testing.T) {
	plugin := newPlugin(t, read(t, rbac))
	for metadata, want := range map[string]string{
		`{name: w1}`: "",
		`{name: w2}`: "of its own node only",
		`{name: w1, ownerReferences: [{apiVersion: v1, kind: Node, name: w1, uid: a}]}`:                           "",
		`{name: w1, ownerReferences: [{apiVersion: v1, kind: Node, name: w2, uid: b, blockOwnerDeletion: true}]}`: "for its own Node only",
		`{name: w1, finalizers: [example.org/stays]}`:                                                             "without finalizers",
	} {
		after := object(t, "{apiVersion: holdfast.dev/v1beta1, kind: SpeakerState, metadata: "+metadata+"}")
		err := admit(t, plugin, nil, after, "",
			&user.DefaultInfo{Name: "system:serviceaccount:holdfast-system:holdfast-speaker",
				Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"w1"}}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", metadata, err, want)
		}
	}
}

// TestControllerServicePolicy: what the controller writes to Services, and what it must not.
func TestControllerServicePolicy(t *testing.T) { controllerServicePolicy(t, generatedPolicies(t)) }

func controllerServicePolicy(t *testing.T, decide verdict) {
	const removed = `{"$patch":"delete","type":"holdfast.dev/AnnouncedL2"}`
	released := strings.Replace(condition("holdfast.dev/AddressAssigned", "False", "Released"), "]", ","+removed+"]", 1)
	gone := strings.Replace(released, `{"type"`, `{"$patch":"delete","type"`, 1)
	for _, tt := range []policyTest{
		{"nothing", aService, `{}`, ""},
		{"addresses", aService, `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.2"},{"ip":"2001:db8::1"}]}}}`, ""},
		{"own condition", aService, condition("holdfast.dev/Written", "False", "WriteRefused"), ""},
		{"the record of the addresses", aService, condition("holdfast.dev/AddressRecord", "True", "Recorded"), ""},
		{"that proxies serve it", aService, condition("holdfast.dev/Proxied", "True", "Proxied"), ""},
		{"the record of settings", aService, condition("holdfast.dev/ProxyRecord", "True", "Accepted"), ""},
		{"that pods send from its addresses", aService, condition("holdfast.dev/Egress", "True", "EgressActive"), ""},
		{
			"own annotations",
			aService,
			`{"metadata":{"annotations":{"holdfast.dev/assigned":null,"holdfast.dev/hostname-shown":"x.org",` +
				`"loadbalancer.openstack.org/load-balancer-id":"x"}}}`, "",
		},
		{
			"own finalizers",
			aService,
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["holdfast.dev/address","service.kubernetes.io/load-balancer-cleanup"]}}`,
			"",
		},
		{"all at once of a Service that is deleted", aService, `{"metadata":{"annotations":{"holdfast.dev/assigned":null},` +
			`"$deleteFromPrimitiveList/finalizers":["holdfast.dev/address","service.kubernetes.io/load-balancer-cleanup"]},` +
			`"status":{"loadBalancer":{"ingress":[]},"conditions":[{"$patch":"delete","type":"holdfast.dev/AddressAssigned"},` +
			`{"$patch":"delete","type":"holdfast.dev/AnnouncedL2"}]}}`, ""},
		{
			"the record of who announces is forged",
			aService, condition("holdfast.dev/Announcers", "True", "Announced"), "may remove the speakers' conditions",
		},
		{"released", aService, released, ""},
		{"released without a trace", aService, gone, ""},
		{
			"a speaker's condition of a Service with addresses goes",
			aService, `{"status":{"conditions":[` + removed + `]}}`, "from a Service without addresses",
		},
		{
			"a speaker's condition",
			aService, condition("holdfast.dev/AnnouncedL2", "False", "NoNode"), "may remove the speakers' conditions",
		},
		{
			"a new condition of a speaker",
			aService, condition("holdfast.dev/AnnouncedBGP", "True", "Announced"),
			"may remove the speakers' conditions",
		},
		{"another's condition", aService, condition("example.org/Other", "False", "Other"), "conditions of others"},
		{
			"another's annotation",
			aService, `{"metadata":{"annotations":{"example.org/note":null}}}`, "may change its annotations",
		},
		{
			"another's finalizer",
			aService, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.org/other"]}}`,
			"may change its finalizers",
		},
		{"a label", aService, `{"metadata":{"labels":{"app":"other"}}}`, "may change its finalizers"},
		{"spec", aService, `{"spec":{"externalIPs":["192.0.2.2"]}}`, "addresses and conditions of a Service only"},
	} {
		tt.run(t, decide, "holdfast-system:holdfast-controller", "")
	}
}

// TestAddressRecordPolicy: only the controller writes the record. Others may write the rest of the status, and remove
// it.
func TestAddressRecordPolicy(t *testing.T) {
	const conditions = "  conditions:\n"
	recorded := strings.Replace(aService, conditions,
		conditions+
			`    - {type: holdfast.dev/AddressRecord, status: "True", reason: Recorded, message: uid=u, lastTransitionTime: "2026-01-01T00:00:00Z"}`+"\n", 1)
	floating := strings.Replace(recorded, "v1\nkind: Service", "holdfast.dev/v1beta1\nkind: FloatingIP", 1)
	forged := `{"status":{"conditions":[{"type":"holdfast.dev/AddressRecord","status":"True","reason":"Recorded","message":"uid=v"}]}}`
	decide := generatedPolicies(t)
	for _, tt := range []policyTest{
		{"nothing", recorded, `{}`, ""},
		{"a new one", aService, condition("holdfast.dev/AddressRecord", "True", "Recorded"), "only the controller"},
		{"that proxies serve it", aService, condition("holdfast.dev/Proxied", "True", "Proxied"), "only the controller"},
		{
			"the record of settings",
			aService, condition("holdfast.dev/ProxyRecord", "True", "Accepted"), "only the controller",
		},
		{"another one", recorded, condition("holdfast.dev/AddressRecord", "True", "Recorded"), "only the controller"},
		{"its removal", recorded, `{"status":{"conditions":[{"$patch":"delete","type":"holdfast.dev/AddressRecord"}]}}`, ""},
		{"addresses", recorded, `{"status":{"loadBalancer":null}}`, ""},
		{"another condition", recorded, condition("example.org/Other", "False", "Other"), ""},
		{"the record of a FloatingIP", floating, forged, "only the controller"},
		{"the removal of the record of a FloatingIP", floating, `{"status":{}}`, ""},
	} {
		tt.run(t, decide, "kube-system:another-load-balancer", "")
	}
	policyTest{"the record of a FloatingIP", floating, forged, ""}.run(t, decide, "holdfast-system:holdfast-controller",
		"")
}

// TestControllerPodPolicy: Ready alone changes, to False with our reason, and back.
func TestControllerPodPolicy(t *testing.T) {
	decide := generatedPolicies(t)
	controllerPodPolicy(t, decide)
	withdraw := condition("Ready", "False", "HoldfastNodeUnreachable")
	newer := strings.Replace(withdraw, `"type":`, `"observedGeneration":4,"type":`, 1)
	policyTest{"with a field that the oldest Kubernetes has not", aPod, newer, "may mark a ready pod not ready"}.run(t,
		decide, "holdfast-system:holdfast-controller", "")
}

func controllerPodPolicy(t *testing.T, decide verdict) {
	const again = `{"status":{"conditions":[{"type":"Ready","status":"True","reason":null,"message":null}]}}`
	withdraw := condition("Ready", "False", "HoldfastNodeUnreachable")
	beside := func(field string) string { return strings.Replace(withdraw, `{"status":{`, `{"status":{`+field+`,`, 1) }
	const ready, only = "may mark a ready pod not ready", "condition Ready of a pod only"
	for _, tt := range []policyTest{
		{"nothing", aPod, `{}`, ""},
		{"withdrawn", aPod, withdraw, ""},
		{"restored", withdrawnPod, again, ""},
		{"not ready for another reason", aPod, condition("Ready", "False", "Test"), ready},
		{"unknown", aPod, condition("Ready", "Unknown", "HoldfastNodeUnreachable"), ready},
		{"ready, although it is not", deadPod, again, ready},
		{"our reason on a pod that is not ready", deadPod, withdraw, ready},
		{"restored with a reason", withdrawnPod, condition("Ready", "True", "Test"), ready},
		{"without the condition", aPod, `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`, ready},
		{
			"with another field of the condition",
			aPod, strings.Replace(withdraw, `"type":`, `"lastProbeTime":"2026-02-01T00:00:00Z","type":`, 1), ready,
		},
		{"another condition", aPod, condition("ContainersReady", "False", "HoldfastNodeUnreachable"), only},
		{"with its phase", aPod, beside(`"phase":"Failed"`), only},
		{"with its address", aPod, beside(`"podIP":"10.0.0.2"`), only},
		{"with a field that was not there", aPod, beside(`"nominatedNodeName":"w2"`), only},
		{"without a field", aPod, beside(`"containerStatuses":null`), only},
		{"with its spec", aPod, `{"spec":{"nodeName":"w2"}}`, only},
		{"with its labels", aPod, `{"metadata":{"labels":{"app":"other"}}}`, "metadata of a pod"},
		{"with an annotation", aPod, `{"metadata":{"annotations":{"a":"b"}}}`, "metadata of a pod"},
		{"with its finalizers", aPod, `{"metadata":{"finalizers":null}}`, "metadata of a pod"},
	} {
		tt.run(t, decide, "holdfast-system:holdfast-controller", "")
	}
}

// TestPoliciesFollowOverlay: where kustomize moves the installation the policies hold for the accounts there, and for
// none that only has such a name.
func TestPoliciesFollowOverlay(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl")
	}
	reads(t, "../../config")
	base, err := filepath.Abs("../../config/default")
	must(t, err)
	dir := t.TempDir()
	base, err = filepath.Rel(dir, base)
	must(t, err)
	overlay := fmt.Sprintf("namespace: elsewhere\nresources: [%s]\n", base)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o644))
	cmd := exec.Command(kubectl, "kustomize", dir)
	cmd.Stderr = t.Output()
	text, err := cmd.Output()
	must(t, err)
	decide := newPolicies(t, string(text))
	addresses := policyTest{"addresses", aService, `{"status":{"loadBalancer":null}}`, "may not change the addresses"}
	addresses.run(t, decide, "elsewhere:holdfast-speaker", "w1")
	policyTest{"a label", aPod, `{"metadata":{"labels":null}}`, "metadata of a pod"}.run(t, decide,
		"elsewhere:holdfast-controller", "")
	for _, account := range []string{"holdfast-system:holdfast-speaker", "default:holdfast-speaker", "elsewhere:other"} {
		addresses.want = ""
		addresses.run(t, decide, account, "w1")
	}
}

const (
	fromElsewhere = `this cluster has the release "holdfast" of Holdfast in the namespace holdfast-system`
	aBinding      = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME, labels: {app.kubernetes.io/name: holdfast, app.kubernetes.io/instance: INSTANCE, app.kubernetes.io/component: speaker}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAME}
subjects: [{kind: ServiceAccount, name: NAME, namespace: NAMESPACE}]
`
)

// binding is what gives the speakers of a release their rights.
func binding(t *testing.T, name, instance, namespace string) runtime.Object {
	t.Helper()
	return object(t, strings.NewReplacer("NAMESPACE", namespace, "NAME", name, "INSTANCE", instance).Replace(aBinding))
}

// TestOneRelease: two releases would write to the same pools, Services and nftables tables, and the uninstall of one
// takes the finalizers of both. So no user can give rights to a second one, whichever way it is installed.
func TestOneRelease(t *testing.T) {
	plugin := newPlugin(t, read(t, rbac))
	own := binding(t, "holdfast-speaker", "holdfast", "holdfast-system")
	others := binding(t, "metallb-speaker", "metallb", "metallb-system")
	others.(*rbacv1.ClusterRoleBinding).Labels["app.kubernetes.io/name"] = "metallb"
	ofUser := own.DeepCopyObject()
	ofUser.(*rbacv1.ClusterRoleBinding).Subjects[0] = rbacv1.Subject{Kind: "User", Name: "eve"}
	for _, tt := range []struct {
		name          string
		before, after runtime.Object
		refused       bool
	}{
		{"installed", nil, own, false},
		{"upgraded", own, own, false},
		{"its uninstall Job", nil, binding(t, "holdfast-uninstall", "holdfast", "holdfast-system"), false},
		{"another program", nil, others, false},
		{"a release in another namespace", nil, binding(t, "edge-holdfast-speaker", "edge", "edge"), true},
		{"a release in the same namespace", nil, binding(t, "edge-holdfast-speaker", "edge", "holdfast-system"), true},
		{"the uninstall Job of another release", nil, binding(t, "edge-holdfast-uninstall", "edge", "edge"), true},
		{"the same manifests in another namespace", own, binding(t, "holdfast-speaker", "holdfast", "edge"), true},
		{"with a prefix in another namespace", nil, binding(t, "edge-holdfast-speaker", "holdfast", "edge"), true},
		{"a user", own, ofUser, true},
	} {
		err := admit(t, plugin, tt.before, tt.after, "", administrator)
		if tt.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), fromElsewhere) {
			t.Errorf("%s: got %v, want a refusal: %v", tt.name, err, tt.refused)
		}
	}
}

// TestPoliciesHostileService: however many annotations and finalizers a tenant writes on a Service, the policies let
// our accounts do their work there. Otherwise no controller could take its address back.
func TestPoliciesHostileService(t *testing.T) {
	decide := generatedPolicies(t)
	const (
		takes    = `{"status":{"loadBalancer":{"ingress":[]}}}`
		forgets  = `{"metadata":{"annotations":{"holdfast.dev/assigned":null}}}`
		releases = `{"metadata":{"annotations":{"holdfast.dev/assigned":null},"$deleteFromPrimitiveList/finalizers":["holdfast.dev/address"]}}`
		both     = `{"metadata":{"$deleteFromPrimitiveList/finalizers":["holdfast.dev/address"]},"status":{"loadBalancer":{"ingress":[]}}}`
	)
	for _, hostile := range []struct {
		name    string
		edit    func(*corev1.Service)
		patches []string
	}{
		// With keys of three letters they are shorter than 256 KiB, the bound of the API server.
		{
			"annotations",
			func(s *corev1.Service) { maps.Copy(s.Annotations, maps.Collect(names("", 80_000))) },
			[]string{takes, releases, both},
		},
		// An object has 1.5 MiB at most. A strategic merge patch that touches so many finalizers takes many seconds.
		{"finalizers", func(s *corev1.Service) {
			for name := range names("x/", 60_000) {
				s.Finalizers = append(s.Finalizers, name)
			}
		}, []string{takes, forgets}},
		{"our finalizer twice", func(s *corev1.Service) { s.Finalizers = append(s.Finalizers, "holdfast.dev/address") },
			[]string{takes, releases, both}},
	} {
		t.Run(hostile.name, func(t *testing.T) {
			service := object(t, aService).(*corev1.Service)
			hostile.edit(service)
			for _, patch := range hostile.patches {
				if err := decide(t, write{"holdfast-system:holdfast-controller", "", service, patch}); err != nil {
					t.Errorf("the controller writes %s: %.300v", patch, err)
				}
			}
			err := decide(t,
				write{"holdfast-system:holdfast-speaker", "w1", service, condition("holdfast.dev/AnnouncedL2", "False", "NoNode")})
			if err != nil {
				t.Errorf("a speaker writes a condition: %.300v", err)
			}
		})
	}
}

// names yields so many different short names, each with an empty value.
func names(prefix string, n int) func(func(string, string) bool) {
	return func(yield func(string, string) bool) {
		const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		for i := range n {
			at := func(place int) byte { return letters[i/place%len(letters)] }
			if !yield(prefix+string([]byte{at(len(letters) * len(letters)), at(len(letters)), at(1)}), "") {
				return
			}
		}
	}
}
