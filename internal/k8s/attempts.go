package k8s

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"regexp"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// retryWait is the wait after a write that failed, and how long the watch may take to show the write that overtook
	// it. It doubles up to maxRetryWait.
	retryWait    = 200 * time.Millisecond
	maxRetryWait = time.Minute
)

// attempts are the last writes that failed, by what they write. The same write waits ever longer: what the API server
// refuses, or an admission webhook that is broken, costs little and delays no other object. A write to another version
// of the object, or of something else, goes at once. What is not tried again is forgotten: the object may be gone.
type attempts struct{ failed *cache.Expiring }

func newAttempts() attempts { return attempts{cache.NewExpiring()} }

type attempt struct {
	// content is a digest of what was written, with the version of the object.
	content uint64
	wait    time.Duration
	until   time.Time
	err     error
}

// heldError is the error of a write that was not sent, because the same one has just failed.
type heldError struct {
	until time.Time
	// last is how it failed. It is not wrapped: this time nothing was asked.
	last error
}

func (h *heldError) Error() string {
	return "not written before " + h.until.Format(time.RFC3339) + ", since it has just failed"
}

// Wait returns after which time a write that ended with this error is tried again, if the error is nothing to report:
// the object was changed, created or deleted meanwhile, or the same write has just failed. Otherwise it returns 0.
func Wait(err error) time.Duration {
	var held *heldError
	switch {
	case errors.As(err, &held):
		return max(time.Until(held.until), time.Nanosecond)
	case Overtaken(err):
		return retryWait
	}
	return 0
}

// Denied returns why the API server, or an admission policy, does not let a write through that waits.
func Denied(err error) (why string, denied bool) {
	var held *heldError
	var status apierrors.APIStatus
	if !errors.As(err, &held) || !denies(held.last) || !errors.As(held.last, &status) {
		return "", false
	}
	return status.Status().Message, true
}

// denies reports whether an error is a decision about the object that was sent.
func denies(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// dates are the strings of an encoded object that are times. They tell when something was decided, not what.
var dates = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+Z"`)

// do sends a write of this object, unless the same one has just failed.
func (a attempts) do(ctx context.Context, object string, body []byte, send func() error) error {
	digest := func() uint64 { return maphash.Bytes(interned.seed, dates.ReplaceAllLiteral(body, nil)) }
	before, failed := a.failed.Get(object)
	last, _ := before.(attempt)
	failed = failed && last.content == digest()
	if failed && time.Now().Before(last.until) {
		return fmt.Errorf("%s: %w", object, &heldError{last.until, last.err})
	}
	err := send()
	switch {
	case err == nil:
		a.failed.Delete(object)
		return nil
	case errors.Is(err, errLapsed) || ctx.Err() != nil:
		return err // it was not sent
	}
	wait := retryWait
	if failed {
		wait = min(2*last.wait, maxRetryWait)
	}
	a.failed.Set(object, attempt{digest(), wait, time.Now().Add(wait), err}, wait+maxRetryWait)
	return err
}

// writers is how many writes run at a time: enough to hide the round trip, and few enough that each gets its answer in
// time. On two busy cores 16 at a time took one second each, a quarter of them longer than the fence allows, and
// finished no sooner.
const writers = 6

// Each runs write for every one of so many items, some concurrently, and joins the errors, of which a Lease that is not
// renewed is one for all items. It returns when to write again what another client overtook or what has just failed,
// zero for nothing; those are no errors.
func (k *Cluster) Each(
	ctx context.Context,
	items int,
	write func(ctx context.Context, item int) error,
) (again time.Time, err error) {
	errs := make([]error, items)
	// None is left out.
	workqueue.ParallelizeUntil(
		context.WithoutCancel(ctx),
		writers,
		items,
		func(i int) { errs[i] = write(ctx, i) },
	)
	var lapsed error
	for i, err := range errs {
		if wait := Wait(err); wait > 0 {
			k.config.Log.Debug("to be written later", "error", err)
			errs[i], again = nil, lb.Sooner(again, time.Now().Add(wait))
		} else if errors.Is(err, errLapsed) {
			errs[i], lapsed = nil, errLapsed
		}
	}
	return again, errors.Join(append(errs, lapsed)...)
}
