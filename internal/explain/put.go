package explain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Put adds an object to the snapshot as if a user applied it, or reports that it is of no kind that Holdfast reads.
func (s *Snapshot) Put(object any) bool {
	o := &s.Objects
	if one, ok := object.(*corev1.Service); ok {
		if old := Find(o.Services, one.Namespace, one.Name); old != nil {
			one.Status, one.Spec.ClusterIPs, one.Spec.ClusterIP = old.Status, old.Spec.ClusterIPs, old.Spec.ClusterIP
			one.Spec.IPFamilies, one.Spec.IPFamilyPolicy = old.Spec.IPFamilies, old.Spec.IPFamilyPolicy
		}
	}
	return put(s.Now, &o.Pools, object) || put(s.Now, &o.L2Advertisements, object) || put(s.Now, &o.BGPAdvertisements, object) ||
		put(s.Now, &o.Peers, object) || put(s.Now, &o.BFDProfiles, object) || put(s.Now, &o.Communities, object) ||
		put(s.Now, &o.FloatingIPs, object) || put(s.Now, &o.Services, object)
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
