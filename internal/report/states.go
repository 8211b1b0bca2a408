package report

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// States reads what other speakers wrote in theirs, for liveness.Config.
type States struct{ *k8s.Cluster }

// Word implements liveness.Cluster.
func (s States) Word(ctx context.Context, node string) (liveness.Word, error) {
	state, err := s.SpeakerState(ctx, node)
	switch {
	case !apiReached(err):
		return liveness.Word{}, fmt.Errorf("%w: %w", liveness.ErrAway, err)
	case err != nil:
		return liveness.Word{}, err
	}
	is := state.Status
	word := liveness.Word{Alive: int(is.Members.Alive), Expected: int(is.Members.Expected)}
	if is.Observed != nil {
		word.Written = is.Observed.String()
	}
	for _, n := range is.Unreachable {
		word.Unreachable = append(word.Unreachable, n.Node)
	}
	for _, n := range is.Silent {
		word.Quiet = append(word.Quiet, n.Node)
	}
	return word, nil
}

// apiReached reports whether what came of a question shows that the network reaches the API server: also a
// refusal does. That a server is at fault may come from a proxy on this very node.
func apiReached(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}
