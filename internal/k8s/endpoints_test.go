package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const yes, no = corev1.ConditionTrue, corev1.ConditionFalse

func withdraw(k *Cluster, ctx context.Context) (bool, error) {
	return k.WithdrawPod(ctx, "ns", "web", "uid", "w1", "no speaker reaches w1")
}

func restore(k *Cluster, ctx context.Context) (bool, error) {
	return k.RestorePod(ctx, "ns", "web", "uid")
}

// podOf returns the pod of version 7 on w1.
func podOf(conditions []corev1.PodCondition) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid", ResourceVersion: "7"}}
	pod.Spec.NodeName, pod.Status.Conditions = "w1", conditions
	return pod
}

// podClients read and write pods only.
func podClients(kube *fake.Clientset) Clients {
	return Clients{kube: kinds{pods: func(ns string) client[*corev1.Pod] { return kube.CoreV1().Pods(ns) }}}
}

// checkVersions has a fake API server check the version that a patch of a pod names, as a real one does. A patch that
// changes something and names none is an error. Before it comes there, meanwhile happens.
func checkVersions(t *testing.T, kube *fake.Clientset, meanwhile func()) {
	kube.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction).GetPatch()
		if string(patch) == "{}" {
			return false, nil, nil
		}
		meanwhile()
		var named metav1.PartialObjectMetadata
		if err := json.Unmarshal(patch, &named); err != nil {
			return true, nil, err
		}
		stored, err := kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "web")
		if err != nil {
			return true, nil, err
		}
		if named.ResourceVersion == "" {
			t.Errorf("a patch depends on no version: %s", patch)
		} else if named.ResourceVersion != stored.(*corev1.Pod).ResourceVersion {
			return true, nil, apierrors.NewConflict(corev1.Resource("pods"), "web", errors.New("the object has been modified"))
		}
		return false, nil, nil
	})
}

// conditions returns Ready with a reason, and ContainersReady.
func conditions(ready corev1.ConditionStatus, reason string, containers corev1.ConditionStatus) []corev1.PodCondition {
	return []corev1.PodCondition{
		{Type: corev1.PodReady, Status: ready, Reason: reason, ObservedGeneration: 3},
		{Type: corev1.ContainersReady, Status: containers},
	}
}

// TestPodWrites: which pods are written, and what. The kubelet's reaction is tested in the lab.
func TestPodWrites(t *testing.T) {
	deleted := metav1.NewTime(time.Unix(1, 0))
	for _, tt := range []struct {
		name string
		do   func(*Cluster, context.Context) (bool, error)
		have []corev1.PodCondition
		edit func(*corev1.Pod)
		want []corev1.PodCondition // nil means nothing is written
	}{
		{"a ready pod", withdraw, conditions(yes, "", yes), nil, conditions(no, PodWithdrawn, yes)},
		{"not ready", withdraw, conditions(no, "ContainersNotReady", no), nil, nil},
		{"one without conditions", withdraw, nil, nil, nil},
		{"another one of the name", withdraw, conditions(yes, "", yes), func(p *corev1.Pod) { p.UID = "later" }, nil},
		{
			"another one of the name, to be restored",
			restore, conditions(no, PodWithdrawn, yes), func(p *corev1.Pod) { p.UID = "later" }, nil,
		},
		{"one of another node", withdraw, conditions(yes, "", yes), func(p *corev1.Pod) { p.Spec.NodeName = "w2" }, nil},
		{"being deleted", withdraw, conditions(yes, "", yes), func(p *corev1.Pod) { p.DeletionTimestamp = &deleted }, nil},
		{"ours is taken back", restore, conditions(no, PodWithdrawn, yes), nil, conditions(yes, "", yes)},
		{"the kubelet has spoken", restore, conditions(no, "ContainersNotReady", no), nil, nil},
		{"its containers died meanwhile", restore, conditions(no, PodWithdrawn, no), nil, nil},
		{"a gate is closed", restore, conditions(no, PodWithdrawn, yes), func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.org/Gate"}}
		}, nil},
		{"it is ready already", restore, conditions(yes, "", yes), nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := podOf(tt.have)
			if tt.edit != nil {
				tt.edit(pod)
			}
			kube := fake.NewClientset(pod)
			checkVersions(t, kube, func() {})
			wrote, err := tt.do(&Cluster{clients: podClients(kube)}, t.Context())
			if err != nil || wrote != (tt.want != nil) {
				t.Errorf("wrote %t, error %v", wrote, err)
			}
			got, err := kube.CoreV1().Pods("ns").Get(t.Context(), "web", metav1.GetOptions{})
			must(t, err)
			want := tt.want
			if want == nil {
				want = tt.have
			}
			diff := cmp.Diff(want, got.Status.Conditions,
				cmpopts.IgnoreFields(corev1.PodCondition{}, "LastTransitionTime", "Message"))
			if diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestPodWriteOvertaken: a pod that its kubelet wrote after we read it, or that is another one of its name by then, is
// left as it is.
func TestPodWriteOvertaken(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Pod){
		"by the kubelet":     func(p *corev1.Pod) { p.Status.Conditions = conditions(no, "ContainersNotReady", no) },
		"by another's birth": func(p *corev1.Pod) { p.UID = "later" },
	} {
		for what, do := range map[string]func(*Cluster, context.Context) (bool, error){
			"withdraw": withdraw, "restore": restore,
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				have := conditions(yes, "", yes)
				if what == "restore" {
					have = conditions(no, PodWithdrawn, yes)
				}
				later := podOf(have)
				later.ResourceVersion = "8"
				edit(later)
				kube := fake.NewClientset(podOf(have))
				pods := corev1.SchemeGroupVersion.WithResource("pods")
				checkVersions(t, kube, func() {
					if err := kube.Tracker().Update(pods, later, "ns"); err != nil {
						t.Error(err)
					}
				})
				if _, err := do(&Cluster{clients: podClients(kube)}, t.Context()); !Overtaken(err) {
					t.Errorf("got %v", err)
				}
				got, err := kube.Tracker().Get(pods, "ns", "web")
				if diff := cmp.Diff(later, got.(*corev1.Pod)); diff != "" || err != nil {
					t.Errorf("error %v, -want +got\n%s", err, diff)
				}
			})
		}
	}
}
