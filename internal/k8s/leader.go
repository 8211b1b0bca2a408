package k8s

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaseName is the Lease the controllers elect their leader by.
const LeaseName = "holdfast-controller"

// ErrLeadershipLost ends a leader: whatever it was about to write belongs to another now.
var ErrLeadershipLost = errors.New("leadership lost")

// Lead runs lead while this process, known as identity, holds the Lease. It
// returns nil when ctx is cancelled, ErrLeadershipLost when another took over,
// and the error of lead.
func (k *Cluster) Lead(parent context.Context, identity string, lead func(context.Context) error) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	// client-go starts the callback in a goroutine of its own; the lock makes us wait
	// for its end, and makes it do nothing if it comes too late.
	var leading sync.Mutex
	var result error
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: k.config.Namespace, Name: LeaseName},
			Client:     k.clients.kube.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		// client-go's usual figures; the values are not critical, since addresses stay
		// announced without any controller.
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				leading.Lock()
				defer leading.Unlock()
				defer cancel() // without its leader's work a lease is held for nothing
				if ctx.Err() == nil {
					result = lead(ctx)
				}
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				k.config.Log.Info("leader elected", "leader", leader)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}
	elector.Run(ctx)
	leading.Lock()
	defer leading.Unlock()
	if parent.Err() == nil && result == nil {
		return ErrLeadershipLost
	}
	return result
}
