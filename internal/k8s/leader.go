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

// LeaseName is the Lease by which the controllers elect their leader.
const LeaseName = "holdfast-controller"

// ErrLeadershipLost ends a leader: only the new leader may write now.
var ErrLeadershipLost = errors.New("leadership lost")

// Lead runs lead while this process, known as identity, holds the Lease. It
// returns nil if ctx is cancelled, ErrLeadershipLost if another process took over,
// and otherwise the error of lead.
func (k *Cluster) Lead(parent context.Context, identity string, lead func(context.Context) error) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	// client-go starts the callback in its own goroutine. The lock makes us wait for
	// its end, and turns it into a no-op if it starts too late.
	var leading sync.Mutex
	var result error
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &leaseLock{
			LeaseLock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: k.config.Namespace, Name: LeaseName},
				Client:     k.clients.kube.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			},
			lost: cancel,
		},
		// client-go's usual values. They are not critical, since addresses stay announced
		// without any controller.
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				leading.Lock()
				defer leading.Unlock()
				defer cancel() // give up the Lease when the leader's work ends
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

// leaseLock ends a leader as soon as it reads that another process holds the Lease. The elector by itself
// goes on trying until RenewDeadline, counted from when a process that was stopped wakes up.
type leaseLock struct {
	*resourcelock.LeaseLock
	// held: this process has written the Lease. Only the elector's goroutine calls a lock.
	held bool
	lost func()
}

func (l *leaseLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.LeaseLock.Create(ctx, r)
	l.held = l.held || err == nil
	return err
}

func (l *leaseLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.LeaseLock.Update(ctx, r)
	l.held = l.held || err == nil
	return err
}

func (l *leaseLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := l.LeaseLock.Get(ctx)
	if err == nil && l.held && r.HolderIdentity != "" && r.HolderIdentity != l.Identity() {
		l.lost()
	}
	return r, raw, err
}
