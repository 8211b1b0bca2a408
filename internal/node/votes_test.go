package node

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestAPIReached: which results show that the network reaches the API server.
func TestAPIReached(t *testing.T) {
	states := schema.GroupResource{Resource: "speakerstates"}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{apierrors.NewNotFound(states, "a"), true},
		{fmt.Errorf("read: %w", apierrors.NewForbidden(states, "a", nil)), true},
		{apierrors.NewUnauthorized("no"), true},
		{apierrors.NewTooManyRequests("later", 1), true},
		{apierrors.NewServiceUnavailable("no upstream"), false},
		{apierrors.NewInternalError(context.Canceled), false},
		{context.DeadlineExceeded, false},
	} {
		if got := apiReached(tt.err); got != tt.want {
			t.Errorf("%v: %t, want %t", tt.err, got, tt.want)
		}
	}
}
