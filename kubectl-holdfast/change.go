package main

import (
	"fmt"
	"slices"
	"time"

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
	o := &s.Objects
	for _, info := range infos {
		if one, ok := info.Object.(*corev1.Service); ok {
			if old := explain.Find(o.Services, one.Namespace, one.Name); old != nil {
				one.Status, one.Spec.ClusterIPs, one.Spec.ClusterIP = old.Status, old.Spec.ClusterIPs, old.Spec.ClusterIP
				one.Spec.IPFamilies, one.Spec.IPFamilyPolicy = old.Spec.IPFamilies, old.Spec.IPFamilyPolicy
			}
		}
		if !put(s.Now, &o.Pools, info.Object) && !put(s.Now, &o.L2Advertisements, info.Object) && !put(s.Now, &o.BGPAdvertisements, info.Object) &&
			!put(s.Now, &o.Peers, info.Object) && !put(s.Now, &o.BFDProfiles, info.Object) && !put(s.Now, &o.Communities, info.Object) &&
			!put(s.Now, &o.FloatingIPs, info.Object) && !put(s.Now, &o.Services, info.Object) {
			return s, fmt.Errorf("%s of %s: a plan knows Holdfast's kinds and Services only", info.ObjectName(), info.Source)
		}
	}
	return s, nil
}

// put adds an object to the others of its kind, or reports that it is of another. It replaces the object of the same name, and
// takes its identity and age. The slice before stays as it is.
func put[T metav1.Object](at time.Time, all *[]T, object any) bool {
	one, ok := object.(T)
	if !ok {
		return false
	}
	*all = slices.Clone(*all)
	for i, old := range *all {
		if old.GetNamespace() == one.GetNamespace() && old.GetName() == one.GetName() {
			one.SetUID(old.GetUID())
			one.SetCreationTimestamp(old.GetCreationTimestamp())
			one.SetGeneration(old.GetGeneration() + 1)
			(*all)[i] = one
			return true
		}
	}
	one.SetCreationTimestamp(metav1.NewTime(at))
	*all = append(*all, one)
	return true
}
