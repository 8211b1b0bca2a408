package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// bfdProfile returns the profile that BFD gives to the peers. Routers agree to 50 ms and more.
func bfdProfile(interval time.Duration) []byte {
	return fmt.Appendf(nil, `
apiVersion: holdfast.dev/v1beta1
kind: BFDProfile
metadata: {name: testbed}
spec: {receiveInterval: %[1]d, transmitInterval: %[1]d, detectMultiplier: 3}
`, interval.Milliseconds())
}

// samplePeers are the BGPPeers of config/samples: two sessions with each router.
var samplePeers = []string{"r1v4", "r1v6", "r2v4", "r2v6"}

// BFD gives all sample peers a profile with an interval and three packets, and waits until their sessions are up on the
// nodes. The function that it returns takes it away again.
func (b *Bed) BFD(
	ctx context.Context,
	interval time.Duration,
	nodes []string,
) (undo func(context.Context) error, err error) {
	undo = func(ctx context.Context) error {
		return errors.Join(b.profile(ctx, "null"), b.Delete(ctx, "", bfdProfile(interval)))
	}
	err = b.Apply(ctx, "", bfdProfile(interval))
	if err == nil {
		err = b.profile(ctx, `"testbed"`)
	}
	if err == nil {
		err = b.WaitBFD(ctx, nodes)
	}
	if err != nil {
		return nil, errors.Join(err, undo(context.WithoutCancel(ctx)))
	}
	return undo, nil
}

func (b *Bed) profile(ctx context.Context, name string) error {
	for _, peer := range samplePeers {
		patch := fmt.Sprintf(`{"spec":{"bfdProfile":%s}}`, name)
		if _, err := b.Resource(Peers).Patch(ctx, peer, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("change BGPPeer %s: %w", peer, err)
		}
	}
	return nil
}

// WaitBFD waits until the BFD and BGP sessions of the nodes with the sample peers are up.
func (b *Bed) WaitBFD(ctx context.Context, nodes []string) error {
	return Until(ctx, time.Minute, "the sessions of BFD", func(ctx context.Context) error {
		for _, node := range nodes {
			m, err := b.Metrics(ctx, node)
			if err != nil {
				return err
			}
			for _, peer := range samplePeers {
				for _, kind := range []string{"bfd", "bgp"} {
					if m[fmt.Sprintf("holdfast_%s_session_up{peer=%q}", kind, peer)] != 1 {
						return fmt.Errorf("%s of %s with %s is not up", strings.ToUpper(kind), node, peer)
					}
				}
			}
		}
		return nil
	})
}

// Hops returns the addresses of a node's fabric link: the next hops that routers have for it.
func (b *Bed) Hops(ctx context.Context, node string) (v4, v6 netip.Addr, err error) {
	out, err := b.On(ctx, node, "ip", "-o", "address", "show", "dev", Fabric, "scope", "global")
	if err != nil {
		return v4, v6, err
	}
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		for i, w := range words[:max(len(words)-1, 0)] {
			p, err := netip.ParsePrefix(words[i+1])
			switch {
			case err != nil:
			case w == "inet":
				v4 = p.Addr()
			case w == "inet6":
				v6 = p.Addr()
			}
		}
	}
	if !v4.IsValid() || !v6.IsValid() {
		return v4, v6, fmt.Errorf("%s of %s has no addresses of both families", Fabric, node)
	}
	return v4, v6, nil
}

// Routed creates a Service of an application with addresses of the sample pool that BGP advertises, and waits for them.
func (b *Bed) Routed(ctx context.Context, app App, name string, change func(*corev1.Service)) ([]netip.Addr, error) {
	s := Service(app, name)
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, "holdfast.dev/pool", "routed")
	if change != nil {
		change(s)
	}
	if _, err := b.Kube.CoreV1().Services(app.Namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create Service %s: %w", name, err)
	}
	return b.WaitAddresses(ctx, app.Namespace, name, 2)
}
