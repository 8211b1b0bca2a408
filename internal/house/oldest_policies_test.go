//go:build oldest

package house

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestOldestPolicies: on the oldest supported Kubernetes our accounts may write what they must, and nothing that the
// policies forbid.
func TestOldestPolicies(t *testing.T) {
	s := newOldest(t)
	addAccount(t, s.config)
	waitForPolicies(t, s)
	speakerPolicies(t, s.decide)
	controllerServicePolicy(t, s.decide)
	controllerPodPolicy(t, s.decide)
	t.Run("rights", s.testRights)
	t.Run("one release", s.testOneRelease)
}

// testOneRelease: an administrator cannot install a second release, and can upgrade the first.
func (s oldest) testOneRelease(t *testing.T) {
	another := binding(t, "edge-holdfast-speaker", "edge", "edge")
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(another)
	must(t, err)
	u := &unstructured.Unstructured{Object: fields}
	client := resourceOf(t, s.config, u)
	var refusal error
	err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			if _, refusal = client.Create(ctx, u, metav1.CreateOptions{}); refusal == nil {
				return false, client.Delete(ctx, u.GetName(), metav1.DeleteOptions{}) // the server has yet to compile the policy
			}
			return true, nil
		})
	if err != nil || !strings.Contains(refusal.Error(), fromElsewhere) {
		t.Errorf("a second release: got %v, %v, want %q", refusal, err, fromElsewhere)
	}
	s.apply(t, rbac)
}

// addAccount creates the account of pods, which no controller does here.
func addAccount(t *testing.T, config *rest.Config) {
	t.Helper()
	kube, err := kubernetes.NewForConfig(config)
	must(t, err)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err = kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(t.Context(), account, metav1.CreateOptions{})
	must(t, err)
}

// waitForPolicies waits until each policy refuses something: the server compiles them after their creation.
func waitForPolicies(t *testing.T, s oldest) {
	t.Helper()
	const label = `{"metadata":{"labels":{"app":"other"}}}`
	for _, w := range []write{
		{"holdfast-system:holdfast-speaker", "w1", object(t, aService), label},
		{"holdfast-system:holdfast-speaker", "w2", object(t, aState), `{"status":{"unreachable":[]}}`},
		{"holdfast-system:holdfast-controller", "", object(t, aService), label},
		{"holdfast-system:holdfast-controller", "", object(t, aPod), label},
	} {
		err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) {
				return s.decide(t, w) != nil, nil
			})
		if err != nil {
			t.Fatalf("%s may write %s to %s: %v", w.account, w.patch, w.object.GetObjectKind().GroupVersionKind().Kind, err)
		}
	}
}

// decide lets the account patch the status of the object as it stands, and removes it afterwards.
func (s oldest) decide(t *testing.T, w write) error {
	t.Helper()
	before := s.put(t, w.object)
	defer s.remove(t, before)
	client := resourceOf(t, s.as(w.account, w.node), before)
	after, err := client.Patch(t.Context(), before.GetName(), patchType(w.object), patchBody(t, w),
		metav1.PatchOptions{}, "status")
	if err == nil && w.patch != `{}` && cmp.Equal(content(before), content(after)) {
		return errIgnored
	}
	return err
}

// patchType is the daemons' own; a SpeakerState is written as a whole.
func patchType(o runtime.Object) types.PatchType {
	if o.GetObjectKind().GroupVersionKind().Kind == "SpeakerState" {
		return types.JSONPatchType
	}
	return types.StrategicMergePatchType
}

func patchBody(t *testing.T, w write) []byte {
	t.Helper()
	if patchType(w.object) != types.JSONPatchType {
		return []byte(w.patch)
	}
	var parts map[string]any
	must(t, json.Unmarshal([]byte(w.patch), &parts))
	ops := []any{}
	for part, value := range parts {
		ops = append(ops, map[string]any{"op": "add", "path": "/" + part, "value": value})
	}
	body, err := json.Marshal(ops)
	must(t, err)
	return body
}

// content is an object without what every write changes.
func content(o *unstructured.Unstructured) map[string]any {
	out := o.DeepCopy()
	out.SetResourceVersion("")
	out.SetManagedFields(nil)
	return out.Object
}

// put creates an object with its status.
func (s oldest) put(t *testing.T, o runtime.Object) *unstructured.Unstructured {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	must(t, err)
	u := &unstructured.Unstructured{Object: fields}
	complete(t, u)
	client := resourceOf(t, s.config, u)
	created, err := client.Create(t.Context(), u, metav1.CreateOptions{})
	must(t, err)
	created.Object["status"] = u.Object["status"]
	created, err = client.UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
	must(t, err)
	return created
}

// complete adds what the server wants of every object of a kind.
func complete(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	var err error
	switch u.GetKind() {
	case "Service":
		err = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"port": int64(80)}}, "spec", "ports")
	case "Pod":
		err = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"name": "web", "image": "web"}}, "spec",
			"containers")
	}
	must(t, err)
}

func (s oldest) remove(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	client := resourceOf(t, s.config, o)
	_, err := client.Patch(t.Context(), o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{})
	if err == nil {
		err = client.Delete(t.Context(), o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}
	must(t, err)
}

// testRights: where RBAC ends, and that a speaker cannot create another's SpeakerState.
func (s oldest) testRights(t *testing.T) {
	const speaker, controller = "holdfast-system:holdfast-speaker", "holdfast-system:holdfast-controller"
	for _, tt := range []struct{ name, account, manifest, want string }{
		{"a speaker and a Service", speaker, aService, "cannot patch resource"},
		{"the controller and a Service", controller, aService, "cannot patch resource"},
		{"the controller and a pod", controller, aPod, "cannot patch resource"},
		{"a speaker and a pod", speaker, aPod, "cannot patch resource"},
	} {
		o := s.put(t, object(t, tt.manifest))
		client := resourceOf(t, s.as(tt.account, "w1"), o)
		_, err := client.Patch(t.Context(), o.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"app":"other"}}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
		s.remove(t, o)
	}
	for node, want := range map[string]string{"w1": "", "w2": "of its own node only", "": "of its own node only"} {
		state := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "holdfast.dev/v1beta1", "kind": "SpeakerState", "metadata": map[string]any{"name": "w1"},
		}}
		created, err := resourceOf(t, s.as(speaker, node), state).Create(t.Context(), state, metav1.CreateOptions{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("create w1 from node %q: got %v, want %q", node, err, want)
		}
		if err == nil {
			s.remove(t, created)
		}
	}
}
