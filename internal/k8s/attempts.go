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
	// retryWait is the first wait after a write that failed, which doubles up to maxRetryWait. It is also the longest
	// time until the watch shows the write that overtook ours.
	retryWait    = 200 * time.Millisecond
	maxRetryWait = time.Minute
)

// maxConcurrentWrites is the number of writes that run at a time. It hides the round trip, and lets each write get its
// answer in time. On two busy cores 16 writes at a time took one second each, a quarter of them longer than the fence
// allows, and finished no sooner.
const maxConcurrentWrites = 6

// attempts has the last failed write of each object. A repeated write waits longer each time. So a write that the API
// server refuses, or a broken admission webhook, costs little and delays no other object. A write with other content,
// or to another version of the object, is sent at once. Entries expire, since the object may be gone.
type attempts struct{ failed *cache.Expiring }

// newAttempts returns attempts without a failed write.
func newAttempts() attempts { return attempts{cache.NewExpiring()} }

// failedAttempt is a write that failed.
type failedAttempt struct {
	// content is a digest of the content, with the version of the object.
	content uint64
	wait    time.Duration
	until   time.Time
	err     error
}

// deferredError is the error of a write that was not sent, because the same write has just failed.
type deferredError struct {
	until time.Time
	// last is the error of the failed write. It is not wrapped, because it is not the answer to this write.
	last error
}

// Error returns the time before which the write is not sent.
func (e *deferredError) Error() string {
	return "not written before " + e.until.Format(time.RFC3339) + ", since it has just failed"
}

// Wait returns the time after which a write that ended with this error is retried, if the error need not be reported:
// the object was changed, created or deleted meanwhile, or the same write has just failed. Otherwise it returns 0.
func Wait(err error) time.Duration {
	var deferred *deferredError
	switch {
	case errors.As(err, &deferred):
		return max(time.Until(deferred.until), time.Nanosecond)
	case Overtaken(err):
		return retryWait
	}

	return 0
}

// Denied reports whether a write is deferred because the API server, or an admission policy, denied it, and returns the
// reason.
func Denied(err error) (reason string, denied bool) {
	var deferred *deferredError
	if !errors.As(err, &deferred) || !isDecision(deferred.last) {
		return "", false
	}

	var status apierrors.APIStatus
	if !errors.As(deferred.last, &status) {
		return "", false
	}

	return status.Status().Message, true
}

// isDecision reports whether an error is a decision about the object that was sent.
func isDecision(err error) bool {
	return apierrors.IsForbidden(err) ||
		apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err)
}

// timestamps matches the times in an encoded object. A write with another time of a decision has the same content.
var timestamps = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+Z"`)

// attempt sends a write of this object, unless the same write has just failed.
func (a attempts) attempt(ctx context.Context, object string, body []byte, send func() error) error {
	digest := func() uint64 {
		content := timestamps.ReplaceAllLiteral(body, nil)
		return maphash.Bytes(seed, content)
	}
	value, ok := a.failed.Get(object)
	last, _ := value.(failedAttempt)
	isRepeated := ok && last.content == digest()
	if isRepeated && time.Now().Before(last.until) {
		return fmt.Errorf("%s: %w", object, &deferredError{until: last.until, last: last.err})
	}

	err := send()
	if err == nil {
		a.failed.Delete(object)
		return nil
	}

	wasNotSent := errors.Is(err, errLeaseLapsed) || ctx.Err() != nil
	if wasNotSent {
		return err
	}

	wait := retryWait
	if isRepeated {
		wait = min(2*last.wait, maxRetryWait)
	}

	failed := failedAttempt{
		content: digest(),
		wait:    wait,
		until:   time.Now().Add(wait),
		err:     err,
	}
	a.failed.Set(object, failed, wait+maxRetryWait)
	return err
}

// Each calls write for each of a number of items, some concurrently, and joins the errors. A Lease that is not renewed
// is one error for all items. Writes that another client overtook, or that have just failed, are no errors: again is
// the time to repeat them, zero for none.
func (k *Cluster) Each(
	ctx context.Context,
	items int,
	write func(ctx context.Context, item int) error,
) (again time.Time, err error) {
	errs := make([]error, items)
	// The context is not cancelled, so that no item is left out.
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), maxConcurrentWrites, items, func(i int) {
		errs[i] = write(ctx, i)
	})

	var lapsed error
	for i, err := range errs {
		wait := Wait(err)
		switch {
		case wait > 0:
			k.config.Log.Debug("to be written later", "error", err)
			errs[i] = nil
			again = lb.Sooner(again, time.Now().Add(wait))
		case errors.Is(err, errLeaseLapsed):
			errs[i] = nil
			lapsed = errLeaseLapsed
		}
	}

	return again, errors.Join(append(errs, lapsed)...)
}
