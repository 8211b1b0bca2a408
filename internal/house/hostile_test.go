package house

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPoliciesHostileService: however many annotations and finalizers a tenant writes on a Service, the policies let our accounts
// do their work there. Otherwise no controller could take its address back.
func TestPoliciesHostileService(t *testing.T) {
	decide := generatedPolicies(t)
	const (
		takes    = `{"status":{"loadBalancer":{"ingress":[]}}}`
		forgets  = `{"metadata":{"annotations":{"holdfast.dev/assigned":null}}}`
		releases = `{"metadata":{"annotations":{"holdfast.dev/assigned":null},"$deleteFromPrimitiveList/finalizers":["holdfast.dev/address"]}}`
	)
	for _, hostile := range []struct {
		name    string
		edit    func(*corev1.Service)
		patches []string
	}{
		// With keys of three letters they are shorter than 256 KiB, the bound of the API server.
		{"annotations", func(s *corev1.Service) { maps.Copy(s.Annotations, maps.Collect(names("", 80_000))) }, []string{takes, releases}},
		// An object has 1.5 MiB at most. A strategic merge patch that touches so many finalizers takes many seconds.
		{"finalizers", func(s *corev1.Service) {
			for name := range names("x/", 60_000) {
				s.Finalizers = append(s.Finalizers, name)
			}
		}, []string{takes, forgets}},
		{"our finalizer twice", func(s *corev1.Service) { s.Finalizers = append(s.Finalizers, "holdfast.dev/address") }, []string{takes, releases}},
	} {
		t.Run(hostile.name, func(t *testing.T) {
			service := object(t, aService).(*corev1.Service)
			hostile.edit(service)
			for _, patch := range hostile.patches {
				if err := decide(t, write{"holdfast-system:holdfast-controller", "", service, patch}); err != nil {
					t.Errorf("the controller writes %s: %.300v", patch, err)
				}
			}
			if err := decide(t, write{"holdfast-system:holdfast-speaker", "w1", service, condition("holdfast.dev/AnnouncedL2", "False", "NoNode")}); err != nil {
				t.Errorf("a speaker writes a condition: %.300v", err)
			}
		})
	}
}

// names yields so many different short names, each with an empty value.
func names(prefix string, n int) func(func(string, string) bool) {
	return func(yield func(string, string) bool) {
		const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		for i := range n {
			at := func(place int) byte { return letters[i/place%len(letters)] }
			if !yield(prefix+string([]byte{at(len(letters) * len(letters)), at(len(letters)), at(1)}), "") {
				return
			}
		}
	}
}
