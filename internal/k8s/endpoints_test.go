package k8s

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// conditions returns Ready with a reason, and ContainersReady.
func conditions(ready corev1.ConditionStatus, reason string, containers corev1.ConditionStatus) []corev1.PodCondition {
	return []corev1.PodCondition{
		{Type: corev1.PodReady, Status: ready, Reason: reason, ObservedGeneration: 3},
		{Type: corev1.ContainersReady, Status: containers},
	}
}

// TestPodWrites: which pods are written, and what. The API server's part (the
// preconditions, the kubelet's reaction) is tested in the lab.
func TestPodWrites(t *testing.T) {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	withdraw := func(k *Cluster, ctx context.Context) (bool, error) {
		return k.WithdrawPod(ctx, "ns", "web", "uid", "w1", "no speaker reaches w1")
	}
	restore := func(k *Cluster, ctx context.Context) (bool, error) { return k.RestorePod(ctx, "ns", "web", "uid") }
	deleted := metav1.NewTime(time.Unix(1, 0))
	for _, tt := range []struct {
		name string
		do   func(*Cluster, context.Context) (bool, error)
		have []corev1.PodCondition
		edit func(*corev1.Pod)
		want []corev1.PodCondition // nil means nothing is written
	}{
		{"a ready pod", withdraw, conditions(yes, "", yes), nil, conditions(no, PodWithdrawn, yes)},
		{"one that is not ready", withdraw, conditions(no, "ContainersNotReady", no), nil, nil},
		{"one without conditions", withdraw, nil, nil, nil},
		{"another one of the name", withdraw, conditions(yes, "", yes), func(p *corev1.Pod) { p.UID = "later" }, nil},
		{"another one of the name, to be restored", restore, conditions(no, PodWithdrawn, yes), func(p *corev1.Pod) { p.UID = "later" }, nil},
		{"one of another node", withdraw, conditions(yes, "", yes), func(p *corev1.Pod) { p.Spec.NodeName = "w2" }, nil},
		{"one that is being deleted", withdraw, conditions(yes, "", yes), func(p *corev1.Pod) { p.DeletionTimestamp = &deleted }, nil},
		{"ours is taken back", restore, conditions(no, PodWithdrawn, yes), nil, conditions(yes, "", yes)},
		{"the kubelet has spoken", restore, conditions(no, "ContainersNotReady", no), nil, nil},
		{"its containers died meanwhile", restore, conditions(no, PodWithdrawn, no), nil, nil},
		{"a gate is closed", restore, conditions(no, PodWithdrawn, yes), func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.org/Gate"}}
		}, nil},
		{"it is ready already", restore, conditions(yes, "", yes), nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid", ResourceVersion: "7"}}
			pod.Spec.NodeName, pod.Status.Conditions = "w1", tt.have
			if tt.edit != nil {
				tt.edit(pod)
			}
			kube := fake.NewClientset(pod)
			wrote, err := tt.do(&Cluster{clients: Clients{kube: kube}}, t.Context())
			if err != nil || wrote != (tt.want != nil) {
				t.Errorf("wrote %t, error %v", wrote, err)
			}
			got, err := kube.CoreV1().Pods("ns").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := tt.want
			if want == nil {
				want = tt.have
			}
			if diff := cmp.Diff(want, got.Status.Conditions, cmpopts.IgnoreFields(corev1.PodCondition{}, "LastTransitionTime", "Message")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
