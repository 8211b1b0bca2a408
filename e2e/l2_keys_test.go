//go:build e2e

package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// membersSecret contains the membership key of the speakers.
const membersSecret = "holdfast-members"

// testL2Keys deletes the membership key, and replaces it in one step, with -matrix only. The speakers
// stay connected: no address moves, and no fetch fails.
func testL2Keys(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	s := newSpread(t, e, onLAN)
	secrets := e.Kube.CoreV1().Secrets(testbed.Namespace)
	change := map[string]func(ctx context.Context) error{
		"deleted": func(ctx context.Context) error { return secrets.Delete(ctx, membersSecret, metav1.DeleteOptions{}) },
		"replaced": func(ctx context.Context) error {
			key := make([]byte, 32)
			rand.Read(key)
			if err := secrets.Delete(ctx, membersSecret, metav1.DeleteOptions{}); err != nil {
				return err
			}
			_, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: membersSecret}, Data: map[string][]byte{"key": key}},
				metav1.CreateOptions{})
			return err
		},
	}
	for _, how := range []string{"deleted", "replaced"} {
		t.Run(how, func(t *testing.T) {
			// Longer than it takes until all send with the new key.
			s.run(t, trouble{name: "the key is " + how, lasts: 7 * time.Minute, stays: true, hit: func(t *testing.T, s *spread) {
				before, err := secrets.Get(t.Context(), membersSecret, metav1.GetOptions{})
				must(t, err)
				must(t, change[how](t.Context()))
				must(t, testbed.Until(t.Context(), time.Minute, "a new Secret", func(ctx context.Context) error {
					now, err := secrets.Get(ctx, membersSecret, metav1.GetOptions{})
					if err == nil && now.UID == before.UID {
						err = fmt.Errorf("it is the one of before")
					}
					return err
				}))
			}})
		})
	}
}
