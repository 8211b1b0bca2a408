package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// stageName is the name of the Service, the pool and the L2Advertisement of a Stage.
const stageName = "stage"

// Stage is the setup for layer 2 faults: two workers announce a Service's addresses, and
// its pod is on the third, so that figures show the announcement and not kube-proxy's
// reaction to dead pods. The third worker announces only if neither of the two can.
type Stage struct {
	*Bed
	App        App
	Anchor     string
	Announcers []string
	Addresses  []netip.Addr
}

// Stage creates a Stage in a namespace. It lasts until Clear.
func (b *Bed) Stage(ctx context.Context, namespace string) (*Stage, error) {
	workers := b.Cluster.Nodes()[1:]
	if len(workers) < 3 {
		return nil, fmt.Errorf("the cluster has %d workers, want 3", len(workers))
	}
	s := &Stage{
		Bed: b, Anchor: workers[0], Announcers: workers[1:],
		// On a busy machine the kubelet's probes of a healthy pod may time out.
		App: App{Namespace: namespace, Name: stageName, Replicas: 1, Nodes: workers[:1], Patience: 30},
	}
	if err := b.Deploy(ctx, s.App); err != nil {
		return nil, err
	}
	if err := b.Apply(ctx, "", s.objects()); err != nil {
		return nil, err
	}
	service := Service(s.App, stageName)
	metav1.SetMetaDataAnnotation(&service.ObjectMeta, "holdfast.dev/pool", stageName)
	_, err := b.Kube.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
	if err == nil {
		s.Addresses, err = b.WaitAddresses(ctx, namespace, stageName, 2)
	}
	if err != nil {
		return nil, errors.Join(err, s.Clear(ctx))
	}
	return s, nil
}

// objects are the pool, of the nodes' LAN, and its advertisement.
func (s *Stage) objects() []byte {
	return fmt.Appendf(nil, `
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: %[1]s}
spec: {autoAssign: false, addresses: [172.30.0.192/28, "fd00:30::2:0/112"]}
---
apiVersion: holdfast.dev/v1beta1
kind: L2Advertisement
metadata: {name: %[1]s}
spec:
  ipAddressPools: [%[1]s]
  preferredNodeSelectors:
    - weight: 100
      preference: {matchExpressions: [{key: %[2]s, operator: In, values: [%[3]s]}]}
`, stageName, hostnameLabel, strings.Join(s.Announcers, ", "))
}

// Restrict excludes the third worker from the advertisement: then one of the two that is held
// down after its death is the last candidate and takes over at once.
func (s *Stage) Restrict(ctx context.Context) error {
	patch := fmt.Appendf(
		nil,
		`{"spec": {"nodeSelectors": [{"matchExpressions": [{"key": %q, "operator": "NotIn", "values": [%q]}]}]}}`,
		hostnameLabel,
		s.Anchor,
	)
	_, err := s.Resource(L2Advertisements).
		Patch(ctx, s.Advertisement(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("restrict the stage: %w", err)
	}
	return nil
}

// Advertisement is the name of the stage's L2Advertisement.
func (s *Stage) Advertisement() string { return stageName }

// Clear removes the stage's objects.
func (s *Stage) Clear(ctx context.Context) error {
	services, apps := s.Kube.CoreV1().Services(s.App.Namespace), s.Kube.AppsV1().Deployments(s.App.Namespace)
	return errors.Join(
		ignoreGone(services.Delete(ctx, stageName, metav1.DeleteOptions{})),
		ignoreGone(apps.Delete(ctx, stageName, metav1.DeleteOptions{})),
		s.Delete(ctx, "", s.objects()),
	)
}

// Owner waits until one of the two announcers owns both addresses, and returns it: a node
// that returns takes addresses back only after its hold-down of at most 5 minutes.
func (s *Stage) Owner(ctx context.Context) (string, error) {
	var owner string
	err := Until(
		ctx,
		HoldDownLimit,
		"one of "+strings.Join(s.Announcers, ", ")+" to own the addresses",
		func(ctx context.Context) error {
			var owners []string
			for _, a := range s.Addresses {
				o, err := s.WaitOwner(ctx, Client, a)
				if err != nil {
					return err
				}
				owners = append(owners, o)
			}
			if owner = owners[0]; owners[1] != owner || !slices.Contains(s.Announcers, owner) {
				return fmt.Errorf("the owners are %v", owners)
			}
			return nil
		},
	)
	return owner, err
}

// Other is the announcer that is not the owner.
func (s *Stage) Other(owner string) string {
	return s.Announcers[1-slices.Index(s.Announcers, owner)]
}
