package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Votes reads the SpeakerStates of other speakers, for liveness.Config.
type Votes struct{ *k8s.Cluster }

// Vote implements liveness.Cluster.
func (s Votes) Vote(ctx context.Context, node string) (liveness.Vote, error) {
	state, err := s.SpeakerState(ctx, node)
	switch {
	case !apiReached(err):
		return liveness.Vote{}, fmt.Errorf("%w: %w", liveness.ErrAway, err)
	case err != nil:
		return liveness.Vote{}, err
	}
	wrote := state.Status
	vote := liveness.Vote{
		Alive:     int(wrote.Members.Alive),
		Expected:  int(wrote.Members.Expected),
		LinkFails: wrote.LinkFails,
	}
	if wrote.Observed != nil && !wrote.Observed.IsZero() {
		vote.Written = wrote.Observed.String()
	}
	for _, n := range slices.Concat(wrote.Unreachable, wrote.Silent) {
		vote.Misses = append(vote.Misses, n.Node)
	}
	return vote, nil
}

// apiReached reports whether the result of a request shows that the network reaches the API server. A refusal does;
// a server error does not, since it may come from a proxy on this node.
func apiReached(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}
