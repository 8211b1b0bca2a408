package k8s

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// openWrite is a write that may have landed, or may still land, though no answer came. It names the version of the
// object that it is for, so that it never lands on another one.
type openWrite[T object] struct {
	// object as it was read, without a version if the write creates it.
	object T
	// addresses that the write gives to the object.
	addresses []netip.Addr
	// settled is from when the write cannot land any more.
	settled time.Time
}

// mayHaveLanded reports whether a write that failed so may have been carried out. The API server refuses definitely
// with a code of 4xx only: a time-out and an error of a proxy prove nothing.
func mayHaveLanded(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError {
		return false
	}
	var held *heldError
	return err != nil && !errors.Is(err, errLapsed) && !errors.As(err, &held)
}

// unanswered records that a write of an object failed, if it may have landed.
func (v *View[T]) unanswered(t T, addresses []netip.Addr, err error) {
	if len(addresses) == 0 || !mayHaveLanded(err) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if before, open := v.open[config.KeyOf(t)]; open && before.object.GetResourceVersion() == t.GetResourceVersion() {
		addresses = slices.Concat(before.addresses, addresses)
		slices.SortFunc(addresses, netip.Addr.Compare)
		addresses = slices.Compact(addresses)
	}
	v.open[config.KeyOf(t)] = openWrite[T]{t, addresses, time.Now().Add(writeTime + landTime)}
}

// settle closes the writes to earlier versions of the object, which is shown so: what landed shows, and the others
// never will land. It is called with mu held.
func (v *View[T]) settle(t T) {
	if w, open := v.open[config.KeyOf(t)]; open && (w.object.GetResourceVersion() == "" || newer(t, w.object)) {
		delete(v.open, config.KeyOf(t))
	}
}

// claims appends the addresses that objects of this kind may have got.
func (v *View[T]) claims(out []lb.Claim, floatingIP bool) []lb.Claim {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := len(out)
	for _, w := range v.open {
		out = append(out, lb.Claim{Key: config.KeyOf(w.object), FloatingIP: floatingIP, Addresses: w.addresses})
	}
	slices.SortFunc(out[before:], func(a, b lb.Claim) int { return a.Key.Compare(b.Key) })
	return out
}

// Claims returns the addresses that objects may have got by writes without an answer, as of the last call of Objects.
// FloatingIPs come before the Services that use them.
func (k *Cluster) Claims() []lb.Claim {
	return k.services.claims(k.floatingIPs.claims(nil, true), false)
}

// Settle reads an object past every cache if a write of it got no answer and cannot land any more, and nothing has
// shown since whether it did. It returns when to decide again, zero for not.
func (k *Cluster) Settle(ctx context.Context) (again time.Time, err error) {
	// An API server that is away holds nothing up, and is not asked for the next object.
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	services, err := k.services.read(ctx, k.services.get)
	if err != nil {
		return time.Time{}, err
	}
	floatingIPs, err := k.floatingIPs.read(ctx, k.floatingIPs.get)
	return lb.Sooner(services, floatingIPs), err
}

// read reads the objects of all writes that cannot land any more, until an error.
func (v *View[T]) read(ctx context.Context, get func(context.Context, T) (T, error)) (again time.Time, err error) {
	v.mu.Lock()
	open := slices.Collect(maps.Values(v.open))
	v.mu.Unlock()
	for _, w := range open {
		if again = lb.Sooner(again, w.settled); time.Now().Before(w.settled) {
			continue
		}
		t, err := get(ctx, w.object)
		switch {
		case err == nil:
			v.wrote(t)
		case !apierrors.IsNotFound(err):
			return time.Time{}, err
		}
		v.mu.Lock()
		delete(v.open, config.KeyOf(w.object))
		v.mu.Unlock()
	}
	return again, nil
}
