package k8s

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestLeaderReadsAnother: a leader that reads another holder in the Lease ends at once, not after RenewDeadline.
func TestLeaderReadsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		k := &Cluster{clients: Clients{kube: kube}, config: Config{Log: slog.New(slog.DiscardHandler), Namespace: "ns"}}
		// The fake has no resource versions: what the former leader writes must be refused here.
		var refuse atomic.Bool
		kube.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return refuse.Load(), nil, apierrors.NewConflict(coordinationv1.Resource("leases"), LeaseName, errors.New("another holder"))
		})
		var taken time.Time
		err := k.Lead(t.Context(), "a", func(ctx context.Context) error {
			lease, err := kube.CoordinationV1().Leases("ns").Get(ctx, LeaseName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			now := metav1.NowMicro()
			lease.Spec.HolderIdentity, lease.Spec.RenewTime = new("b"), &now
			if _, err := kube.CoordinationV1().Leases("ns").Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
				return err
			}
			taken = time.Now()
			refuse.Store(true)
			<-ctx.Done()
			return nil
		})
		if after := time.Since(taken); !errors.Is(err, ErrLeadershipLost) || after > 3*time.Second {
			t.Errorf("ended after %v with %v", after, err)
		}
	})
}
