package k8s

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// writers is how many writes run at a time: enough to hide the round trip, few
// enough to leave capacity of the API server to others.
const writers = 16

// Each runs write for every item, some concurrently, and joins the errors, of which a Lease that is not renewed is one
// for all items. It returns when to write again what another client overtook or what has just failed, zero for nothing;
// those are no errors.
func Each[T any](ctx context.Context, log *slog.Logger, items []T, write func(context.Context, T) error) (again time.Time, err error) {
	var group errgroup.Group
	group.SetLimit(writers)
	errs := make([]error, len(items))
	for i, item := range items {
		group.Go(func() error {
			errs[i] = write(ctx, item)
			return nil
		})
	}
	_ = group.Wait() // every error is in errs
	var lapsed error
	for i, err := range errs {
		if wait := Wait(err); wait > 0 {
			log.Debug("to be written later", "error", err)
			errs[i], again = nil, Sooner(again, time.Now().Add(wait))
		} else if errors.Is(err, errLapsed) {
			errs[i], lapsed = nil, errLapsed
		}
	}
	return again, errors.Join(append(errs, lapsed)...)
}

// Bounded cuts a message to the API's limit for a condition (32768 bytes), with room to spare.
func Bounded(message string) string {
	const most = 4096
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + " …"
}
