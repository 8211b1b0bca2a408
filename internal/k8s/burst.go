package k8s

import (
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	// burstRate is how many Services a second, and burstSize how many at once, may get
	// or lose addresses before that counts as a burst.
	burstRate = 10
	burstSize = 10
	// gatherTime is how long changes of addresses are gathered during a burst.
	gatherTime = time.Second
)

// burst detects that many Services are getting addresses. Users wait for each of
// these writes, so less urgent work is delayed: one plan covers many Services, and
// conditions and Events are written later. It is a leaky bucket, which drains at burstRate.
type burst struct {
	mu    sync.Mutex
	level float64
	at    time.Time
	// gathering: a kick is scheduled.
	gathering bool
}

// add counts one Service. The bucket holds twice the threshold, so that a burst
// ends one second after its last Service.
func (b *burst) add() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leak()
	b.level = min(b.level+1, burstSize+burstRate)
}

func (b *burst) active() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leak()
	return b.level > burstSize
}

// leak is called with mu held.
func (b *burst) leak() {
	now := time.Now()
	b.level = max(0, b.level-now.Sub(b.at).Seconds()*burstRate)
	b.at = now
}

// kick calls the function at once, or in a burst once for all calls within gatherTime.
func (b *burst) kick(call func()) {
	if !b.active() {
		call()
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gathering {
		return
	}
	b.gathering = true
	time.AfterFunc(gatherTime, func() {
		b.mu.Lock()
		b.gathering = false
		b.mu.Unlock()
		call()
	})
}

// InBurst reports whether many Services are getting addresses just now.
func (k *Cluster) InBurst() bool { return k.burst.active() }

// changedForController kicks at once for a Service that may be waiting for an address.
func (k *Cluster) changedForController(old, new *corev1.Service) {
	switch {
	case sameToController(old, new):
	case new != nil && len(new.Status.LoadBalancer.Ingress) == 0:
		k.config.Kick()
	default:
		k.burst.kick(k.config.Kick)
	}
}

// changedForSpeaker kicks at once for a user's change of a Service: the removal of a
// source range must not wait because others get their addresses.
func (k *Cluster) changedForSpeaker(old, new *corev1.Service) {
	switch {
	case sameToSpeaker(old, new):
	case onlyAddresses(old, new):
		k.burst.kick(k.config.Kick)
	default:
		k.config.Kick()
	}
}

// watchBurst counts the Services whose addresses change.
func (k *Cluster) watchBurst() error {
	_, err := k.services.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, now any) {
			was, is := old.(*corev1.Service), now.(*corev1.Service)
			if !reflect.DeepEqual(was.Status.LoadBalancer, is.Status.LoadBalancer) {
				k.burst.add()
			}
		},
	})
	return err
}
