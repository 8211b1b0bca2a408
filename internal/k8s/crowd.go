package k8s

import (
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	// crowdRate is how many Services a second may get or lose addresses before they
	// are a crowd, and crowdBurst how many at once.
	crowdRate  = 10
	crowdBurst = 10
	// gatherTime is how long changes of addresses are gathered while there is a crowd.
	gatherTime = time.Second
)

// crowd tells when many Services get their addresses. Every one of them is a write
// that somebody waits for, so what can wait lets them pass: a plan is made once for
// many of them, and what only says what became of them is written later. It is a
// leaky bucket: what is in it flows out at crowdRate.
type crowd struct {
	mu    sync.Mutex
	level float64
	at    time.Time
	// gathering: a kick is due.
	gathering bool
}

// add counts one Service. The bucket holds twice what makes a crowd, so that one
// has dispersed a second after its last Service.
func (c *crowd) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leak()
	c.level = min(c.level+1, crowdBurst+crowdRate)
}

func (c *crowd) stands() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leak()
	return c.level > crowdBurst
}

// leak is called with mu held.
func (c *crowd) leak() {
	now := time.Now()
	c.level = max(0, c.level-now.Sub(c.at).Seconds()*crowdRate)
	c.at = now
}

// kick calls the function at once, or in a crowd once for all within gatherTime.
func (c *crowd) kick(call func()) {
	if !c.stands() {
		call()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gathering {
		return
	}
	c.gathering = true
	time.AfterFunc(gatherTime, func() {
		c.mu.Lock()
		c.gathering = false
		c.mu.Unlock()
		call()
	})
}

// Crowded reports whether many Services are getting their addresses just now.
func (k *Cluster) Crowded() bool { return k.crowd.stands() }

// changedForController kicks at once for a Service that may be waiting for an address.
func (k *Cluster) changedForController(old, new *corev1.Service) {
	switch {
	case sameToController(old, new):
	case new != nil && len(new.Status.LoadBalancer.Ingress) == 0:
		k.config.Kick()
	default:
		k.crowd.kick(k.config.Kick)
	}
}

// changedForSpeaker kicks at once for what somebody asks of a Service: a source range that
// is taken away must not wait because others get their addresses.
func (k *Cluster) changedForSpeaker(old, new *corev1.Service) {
	switch {
	case sameToSpeaker(old, new):
	case onlyAddresses(old, new):
		k.crowd.kick(k.config.Kick)
	default:
		k.config.Kick()
	}
}

// watchCrowd counts the Services whose addresses change.
func (k *Cluster) watchCrowd() error {
	_, err := k.services.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, now any) {
			was, is := old.(*corev1.Service), now.(*corev1.Service)
			if !reflect.DeepEqual(was.Status.LoadBalancer, is.Status.LoadBalancer) {
				k.crowd.add()
			}
		},
	})
	return err
}
