package testbed

import (
	"context"
	"fmt"
	"time"
)

// HoldDownLimit is above the longest hold-down, which each further death of a node doubles up to five minutes.
const HoldDownLimit = 6 * time.Minute

// passing are the reasons for which a node leaves its addresses to others for a while after it started.
var passing = []string{"KubeProxyNotReady", "NetworkUnavailable"}

// Calm waits until every speaker sees all others as alive, and none as held down, and no node leaves its addresses to
// others because it started: from then on no address moves without a new cause.
func (b *Bed) Calm(ctx context.Context) error {
	return Until(ctx, HoldDownLimit, "an end of all hold-downs", func(ctx context.Context) error {
		pods, err := b.Pods(ctx, Speaker)
		if err != nil {
			return err
		}
		for _, p := range pods {
			m, err := b.Metrics(ctx, p.Spec.NodeName)
			if err != nil {
				return err
			}
			if alive := int(m[`holdfast_members{state="alive"}`]); alive != len(pods) {
				return fmt.Errorf("to the speaker of %s %d of %d are alive", p.Spec.NodeName, alive, len(pods))
			}
			for _, reason := range passing {
				if m[fmt.Sprintf("holdfast_problems{kind=%q,reason=%q}", "Node", reason)] > 0 {
					return fmt.Errorf("node %s reports %s", p.Spec.NodeName, reason)
				}
			}
		}
		return nil
	})
}
