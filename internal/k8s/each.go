package k8s

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"golang.org/x/sync/errgroup"
)

// writers is how many writes run at a time: enough to hide the round trip, few
// enough to leave capacity of the API server to others.
const writers = 16

// Each runs write for every item, some concurrently, and joins the errors, of which a Lease that is not renewed is one
// for all items. Overtaken counts the writes whose object changed or was deleted meanwhile; those are no errors.
func Each[T any](ctx context.Context, log *slog.Logger, items []T, write func(context.Context, T) error) (overtaken int, err error) {
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
		switch {
		case Overtaken(err):
			log.Debug("write overtaken by another, deciding again", "error", err)
			errs[i] = nil
			overtaken++
		case errors.Is(err, errLapsed):
			errs[i], lapsed = nil, errLapsed
		}
	}
	return overtaken, errors.Join(append(errs, lapsed)...)
}

// Bounded cuts a message to the API's limit for a condition (32768 bytes), with room to spare.
func Bounded(message string) string {
	const most = 4096
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + " …"
}
