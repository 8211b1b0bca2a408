package house

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// errIgnored: the API server takes the write, and changes nothing.
var errIgnored = errors.New("ignored")

// verdict says why a write is refused, nil if it is admitted.
type verdict func(*testing.T, write) error

// newPolicies returns what the policies of a manifest say of writes.
func newPolicies(t *testing.T, manifest string) verdict {
	plugin := newPlugin(t, manifest)
	return func(t *testing.T, w write) error {
		t.Helper()
		who := &user.DefaultInfo{Name: "system:serviceaccount:" + w.account}
		if w.node != "" {
			who.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {w.node}}
		}
		return admit(t, plugin, w.object, patched(t, w.object, w.patch), "status", who)
	}
}

// newPlugin runs the API server's own admission plugin with the policies of a manifest, their bindings, and the
// ClusterRoleBindings that they follow.
func newPlugin(t *testing.T, manifest string) *validating.Plugin {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
	client := fake.NewClientset(append(policyObjects(t, manifest), namespace)...)
	factory := informers.NewSharedInformerFactory(client, 0)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"), meta.RESTScopeRoot)
	plugin, err := validating.NewPlugin(nil)
	must(t, err)
	plugin.SetExternalKubeClientSet(client)
	plugin.SetExternalKubeInformerFactory(factory)
	plugin.SetRESTMapper(mapper)
	plugin.SetDynamicClient(dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()))
	plugin.SetDrainedNotification(t.Context().Done())
	plugin.SetUnconditionalAuthorizer(authorizerfactory.NewAlwaysDenyAuthorizer())
	must(t, plugin.ValidateInitialization())
	factory.Start(t.Context().Done())
	if !plugin.WaitForReady() {
		t.Fatal("the plugin is not ready")
	}
	return plugin
}

// policyObjects decodes what the plugin reads of a manifest.
func policyObjects(t *testing.T, manifest string) []runtime.Object {
	t.Helper()
	var out []runtime.Object
	for part := range strings.SplitSeq("\n"+manifest, "\n---\n") {
		var m metav1.TypeMeta
		must(t, yaml.Unmarshal([]byte(part), &m))
		var o runtime.Object
		switch m.Kind {
		case "ValidatingAdmissionPolicy":
			o = &admissionv1.ValidatingAdmissionPolicy{}
		case "ValidatingAdmissionPolicyBinding":
			o = &admissionv1.ValidatingAdmissionPolicyBinding{}
		case "ClusterRoleBinding":
			o = &rbacv1.ClusterRoleBinding{}
		default:
			continue
		}
		must(t, yaml.UnmarshalStrict([]byte(part), o))
		if policy, ok := o.(*admissionv1.ValidatingAdmissionPolicy); ok {
			setDefaults(policy.Spec.MatchConstraints)
		}
		o.(metav1.Object).SetNamespace("") // kustomize gives some cluster-scoped objects one, which the API server drops
		out = append(out, o)
	}
	return out
}

// setDefaults sets what the API server would, when it stores a policy.
func setDefaults(m *admissionv1.MatchResources) {
	m.NamespaceSelector, m.MatchPolicy = &metav1.LabelSelector{}, new(admissionv1.Equivalent)
	if m.ObjectSelector == nil {
		m.ObjectSelector = &metav1.LabelSelector{}
	}
	for i := range m.ResourceRules {
		m.ResourceRules[i].Scope = new(admissionv1.AllScopes)
	}
}

// write is an attempt to write to the status of an object.
type write struct {
	account string // NAMESPACE:NAME
	node    string // in the token of the account's pod
	object  runtime.Object
	// patch is a strategic merge patch; of a SpeakerState a merge patch of its top level.
	patch string
}

// administrator may do everything.
var administrator = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}

// admit returns what the plugin says of a user who creates an object, or who writes it, or what is below it, over
// before.
func admit(t *testing.T, plugin *validating.Plugin, before, after runtime.Object, below string, who user.Info) error {
	t.Helper()
	operation, options := admission.Create, runtime.Object(&metav1.CreateOptions{})
	if before != nil {
		operation, options = admission.Update, &metav1.UpdateOptions{}
	}
	kind := after.GetObjectKind().GroupVersionKind()
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	o := after.(metav1.Object)
	return plugin.Validate(t.Context(), admission.NewAttributesRecord(after, before, kind, o.GetNamespace(), o.GetName(),
		resource, below, operation, options, false, who), admission.NewObjectInterfacesFromScheme(scheme.Scheme))
}

// patched returns a patched copy of an object.
func patched(t *testing.T, o runtime.Object, patch string) runtime.Object {
	t.Helper()
	before, err := json.Marshal(o)
	must(t, err)
	after := o.DeepCopyObject()
	if u, ok := after.(*unstructured.Unstructured); ok {
		must(t, json.Unmarshal([]byte(patch), &u.Object))
		return u
	}
	body, err := strategicpatch.StrategicMergePatch(before, []byte(patch), o)
	must(t, err)
	after, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	must(t, err)
	return after
}

// object decodes an object with its kind.
func object(t *testing.T, text string) runtime.Object {
	t.Helper()
	var u unstructured.Unstructured
	must(t, yaml.Unmarshal([]byte(text), &u.Object))
	if !scheme.Scheme.IsVersionRegistered(u.GroupVersionKind().GroupVersion()) {
		return &u
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(text), nil, nil)
	must(t, err)
	return o
}
