package layer2

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestTry: a packet socket needs NET_RAW, and nothing else on this kernel.
func TestTry(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if err := Try(); err != nil {
			t.Error(err)
		}
		nstest.Without(t, unix.CAP_NET_RAW, func() {
			if err := Try(); !errors.Is(err, unix.EPERM) {
				t.Errorf("without NET_RAW: %v", err)
			}
		})
	})
}
