package lb

import (
	"slices"
	"testing"
)

// TestLacking: a node lacks the namespaces with proxied Services of which its ready proxies serve nothing, and without
// a ready proxy it says nothing.
func TestLacking(t *testing.T) {
	service := func(namespace, name string, proxied bool) *Service {
		return &Service{Key: Key{Namespace: namespace, Name: name}, Proxied: proxied}
	}
	services := []*Service{
		service("a", "x", true), service("a", "y", true), service("b", "x", true), service("c", "x", false),
	}
	pod := func(node string, ready bool, serves ...Key) ProxyPod {
		p := ProxyPod{Node: node, Ready: ready, Frontends: map[Key]map[uint16]uint16{}}
		for _, key := range serves {
			p.Frontends[key] = map[uint16]uint16{80: 30080}
		}
		return p
	}
	ax, bx := Key{Namespace: "a", Name: "x"}, Key{Namespace: "b", Name: "x"}
	unknown := ProxyPod{Node: "w1", Ready: true}
	for name, tt := range map[string]struct {
		pods []ProxyPod
		want []string
	}{
		"no proxy":                    {nil, nil},
		"a proxy of another node":     {[]ProxyPod{pod("w2", true)}, nil},
		"a proxy that terminates":     {[]ProxyPod{pod("w1", false)}, nil},
		"a proxy that has not said":   {[]ProxyPod{unknown}, nil},
		"a proxy that serves nothing": {[]ProxyPod{pod("w1", true)}, []string{"a", "b"}},
		"one Service is enough":       {[]ProxyPod{pod("w1", true, ax)}, []string{"b"}},
		"two proxies":                 {[]ProxyPod{pod("w1", true, ax), pod("w1", true, bx)}, nil},
	} {
		var want []uint32
		for _, namespace := range tt.want {
			want = append(want, NamespaceHash(namespace))
		}
		slices.Sort(want)
		if got := Lacking(services, tt.pods, "w1"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
