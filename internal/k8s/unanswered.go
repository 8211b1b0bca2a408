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

// unansweredWrite is a write that may have landed, or may still land, although no answer came. It is for one version of
// the object, so it never lands on another one.
type unansweredWrite[T object] struct {
	// object is the object as it was read. It has no version if the write creates it.
	object T
	// addresses are the addresses that the write gives to the object.
	addresses []netip.Addr
	// settledAt is the time from which the write cannot land any more.
	settledAt time.Time
}

// mayHaveLanded reports whether a write with this error may have been carried out. Only a code of 4xx is a definite
// refusal of the API server: a timeout, or an error of a proxy, proves nothing.
func mayHaveLanded(err error) bool {
	if err == nil || errors.Is(err, errLeaseLapsed) {
		return false
	}

	var status apierrors.APIStatus
	isRefused := errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
	if isRefused {
		return false
	}

	var deferred *deferredError
	return !errors.As(err, &deferred)
}

// recordUnanswered records that a write of an object failed, if it may have landed.
func (v *View[T]) recordUnanswered(t T, addresses []netip.Addr, err error) {
	if len(addresses) == 0 || !mayHaveLanded(err) {
		return
	}

	v.mu.Lock()
	defer v.mu.Unlock()
	key := config.KeyOf(t)
	last, ok := v.unanswered[key]
	isSameVersion := ok && last.object.GetResourceVersion() == t.GetResourceVersion()
	if isSameVersion {
		addresses = slices.Concat(last.addresses, addresses)
		slices.SortFunc(addresses, netip.Addr.Compare)
		addresses = slices.Compact(addresses)
	}

	v.unanswered[key] = unansweredWrite[T]{
		object:    t,
		addresses: addresses,
		settledAt: time.Now().Add(writeTime + landTime),
	}
}

// settle drops the writes to versions of an object before t: a write that landed is part of t, and the others will
// never land. The caller holds mu.
func (v *View[T]) settle(t T) {
	key := config.KeyOf(t)
	w, ok := v.unanswered[key]
	if !ok {
		return
	}

	isCreation := w.object.GetResourceVersion() == ""
	if isCreation || isNewer(t, w.object) {
		delete(v.unanswered, key)
	}
}

// claims appends the addresses that objects of this kind may have got.
func (v *View[T]) claims(out []lb.Claim, isFloatingIP bool) []lb.Claim {
	v.mu.Lock()
	defer v.mu.Unlock()

	first := len(out)
	for _, w := range v.unanswered {
		out = append(out, lb.Claim{
			Key:        config.KeyOf(w.object),
			FloatingIP: isFloatingIP,
			Addresses:  w.addresses,
		})
	}

	slices.SortFunc(out[first:], func(a, b lb.Claim) int {
		return a.Key.Compare(b.Key)
	})
	return out
}

// Claims returns the addresses that objects may have got by writes without an answer, as of the last call of Objects.
// FloatingIPs come before the Services that use them.
func (k *Cluster) Claims() []lb.Claim {
	claims := k.floatingIPs.claims(nil, true)
	return k.services.claims(claims, false)
}

// Settle reads the objects of writes without an answer past every cache, once the writes cannot land any more and no
// watch has shown whether they landed. It returns the time to decide again; zero for none.
func (k *Cluster) Settle(ctx context.Context) (again time.Time, err error) {
	// An unreachable API server delays the caller once, and not for each object.
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
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
	writes := slices.Collect(maps.Values(v.unanswered))
	v.mu.Unlock()

	for _, w := range writes {
		again = lb.Sooner(again, w.settledAt)
		if time.Now().Before(w.settledAt) {
			continue
		}

		t, err := get(ctx, w.object)
		switch {
		case err == nil:
			v.recordWrite(t)
		case !apierrors.IsNotFound(err):
			return time.Time{}, err
		}

		v.mu.Lock()
		delete(v.unanswered, config.KeyOf(w.object))
		v.mu.Unlock()
	}

	return again, nil
}
