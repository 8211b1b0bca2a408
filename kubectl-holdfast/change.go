package main

import (
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/explain"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/resource"
)

// with returns the cluster as it would be with the objects of these files in it.
func with(s explain.Snapshot, files []string) (explain.Snapshot, error) {
	// No server is asked: a plan changes nothing, and knows all kinds that it reads.
	result := resource.NewLocalBuilder().WithScheme(scheme, scheme.PrioritizedVersionsAllGroups()...).
		FilenameParam(false, &resource.FilenameOptions{Filenames: files}).Flatten().Do()
	infos, err := result.Infos()
	if err != nil {
		return s, fmt.Errorf("read the objects: %w", err)
	}
	o := s.Objects
	for _, info := range infos {
		switch one := info.Object.(type) {
		case *v1beta1.IPAddressPool:
			o.Pools = put(s, o.Pools, one)
		case *v1beta1.L2Advertisement:
			o.L2Advertisements = put(s, o.L2Advertisements, one)
		case *v1beta1.BGPAdvertisement:
			o.BGPAdvertisements = put(s, o.BGPAdvertisements, one)
		case *v1beta1.BGPPeer:
			o.Peers = put(s, o.Peers, one)
		case *v1beta1.BFDProfile:
			o.BFDProfiles = put(s, o.BFDProfiles, one)
		case *v1beta1.Community:
			o.Communities = put(s, o.Communities, one)
		case *v1beta1.FloatingIP:
			o.FloatingIPs = put(s, o.FloatingIPs, one)
		case *corev1.Service:
			before := slices.IndexFunc(o.Services, func(b *corev1.Service) bool { return b.Namespace == one.Namespace && b.Name == one.Name })
			if before >= 0 {
				one.Status = o.Services[before].Status
				one.Spec.ClusterIPs, one.Spec.ClusterIP = o.Services[before].Spec.ClusterIPs, o.Services[before].Spec.ClusterIP
				one.Spec.IPFamilies, one.Spec.IPFamilyPolicy = o.Services[before].Spec.IPFamilies, o.Services[before].Spec.IPFamilyPolicy
			}
			o.Services = put(s, o.Services, one)
		default:
			return s, fmt.Errorf("%s of %s: a plan knows Holdfast's kinds and Services only", info.ObjectName(), info.Source)
		}
	}
	s.Objects = o
	return s, nil
}

// put returns the objects with one more. It replaces the object of the same name, and takes its identity and age.
func put[T metav1.Object](s explain.Snapshot, all []T, one T) []T {
	out := slices.Clone(all)
	for i, old := range out {
		if old.GetNamespace() == one.GetNamespace() && old.GetName() == one.GetName() {
			one.SetUID(old.GetUID())
			one.SetCreationTimestamp(old.GetCreationTimestamp())
			one.SetGeneration(old.GetGeneration() + 1)
			out[i] = one
			return out
		}
	}
	one.SetCreationTimestamp(metav1.NewTime(s.Now))
	return append(out, one)
}
