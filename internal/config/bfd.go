package config

import (
	"fmt"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// The defaults of FRR, which MetalLB leaves to it.
	defaultBFDInterval   = 300
	defaultBFDMultiplier = 3
	defaultMinimumTTL    = 254
	// Milliseconds.
	leastBFDInterval, mostBFDInterval = 10, 60_000
)

// attachBFD gives every peer that names a BFDProfile its BFD. A peer whose profile cannot be used runs without BFD: what
// is advertised must not depend on an object that somebody deleted by mistake.
func attachBFD(r *report, profiles []*v1beta1.BFDProfile, objects []*v1beta1.BGPPeer, peers []lb.Peer) {
	compiled := compileBFDProfiles(r, profiles)
	names := map[string]string{}
	for _, o := range objects {
		names[o.Name] = o.Spec.BFDProfile
	}
	for i := range peers {
		name := names[peers[i].Name]
		if name == "" {
			continue
		}
		b, exists := compiled[name]
		if !exists {
			r.fault(lb.Object{Kind: KindPeer, Name: peers[i].Name}, lb.UnknownReference,
				"spec.bfdProfile names BFDProfile %q, which does not exist or is not in force: the session runs without BFD", name)
			continue
		}
		peers[i].BFD = &b
	}
}

// compileBFDProfiles returns the usable profiles by name.
func compileBFDProfiles(r *report, objects []*v1beta1.BFDProfile) map[string]lb.BFD {
	out := map[string]lb.BFD{}
	for _, o := range byName(inForce(r, KindBFDProfile, objects, "spec.echoInterval")) {
		object := lb.Object{Kind: KindBFDProfile, Name: o.Name}
		b, err := compileBFD(o.Spec)
		if err != nil {
			r.fault(object, lb.InvalidProfile, "not used: %v", err)
			continue
		}
		if o.Spec.EchoMode {
			r.fault(object, lb.InvalidProfile, "echo mode is not supported, and speakers send no Echo packets: remove echoMode, and choose shorter intervals")
		}
		out[o.Name] = b
	}
	return out
}

func compileBFD(s v1beta1.BFDProfileSpec) (lb.BFD, error) {
	value := func(p *int32, otherwise int32) int32 {
		if p == nil {
			return otherwise
		}
		return *p
	}
	receive, transmit := value(s.ReceiveInterval, defaultBFDInterval), value(s.TransmitInterval, defaultBFDInterval)
	multiplier, ttl := value(s.DetectMultiplier, defaultBFDMultiplier), value(s.MinimumTTL, defaultMinimumTTL)
	for _, field := range []struct {
		name               string
		value, least, most int32
	}{
		{"receiveInterval", receive, leastBFDInterval, mostBFDInterval},
		{"transmitInterval", transmit, leastBFDInterval, mostBFDInterval},
		{"detectMultiplier", multiplier, 2, 255},
		{"minimumTtl", ttl, 1, 254},
	} {
		if field.value < field.least || field.value > field.most {
			return lb.BFD{}, fmt.Errorf("%s %d is not between %d and %d", field.name, field.value, field.least, field.most)
		}
	}
	return lb.BFD{
		Receive: time.Duration(receive) * time.Millisecond, Transmit: time.Duration(transmit) * time.Millisecond,
		Multiplier: uint8(multiplier), Passive: s.PassiveMode, MinimumTTL: uint8(ttl),
	}, nil
}
