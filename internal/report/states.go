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

// States reads the SpeakerStates of other speakers, for liveness.Config.
type States struct{ *k8s.Cluster }

// Vote implements liveness.Cluster.
func (s States) Vote(ctx context.Context, node string) (liveness.Vote, error) {
	state, err := s.SpeakerState(ctx, node)
	switch {
	case !apiReached(err):
		return liveness.Vote{}, fmt.Errorf("%w: %w", liveness.ErrAway, err)
	case err != nil:
		return liveness.Vote{}, err
	}
	is := state.Status
	vote := liveness.Vote{Alive: int(is.Members.Alive), Expected: int(is.Members.Expected), LinkFails: is.LinkFails}
	if is.Observed != nil {
		vote.Written = is.Observed.String()
	}
	for _, n := range is.Unreachable {
		vote.Unreachable = append(vote.Unreachable, n.Node)
	}
	for _, n := range is.Silent {
		vote.Quiet = append(vote.Quiet, n.Node)
	}
	return vote, nil
}

// apiReached reports whether the result of a request shows that the network reaches the API server. A refusal does;
// a server error does not, since it may come from a proxy on this node.
func apiReached(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}
