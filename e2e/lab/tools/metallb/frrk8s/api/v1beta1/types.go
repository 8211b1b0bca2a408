// Package v1beta1 stands in for the types of FRR-K8s, whose version that MetalLB requires no proxy has. MetalLB's mode frr-k8s
// alone uses them: its native mode, which the test of the migration runs, only compiles with them.
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme adds nothing: no object of these kinds is read or written.
func AddToScheme(*runtime.Scheme) error { return nil }

// The types have the fields that MetalLB names.
type (
	FRRConfiguration struct {
		metav1.TypeMeta
		metav1.ObjectMeta
		Spec FRRConfigurationSpec
	}
	FRRConfigurationSpec struct {
		BGP          BGPConfig
		NodeSelector metav1.LabelSelector
	}
	BGPConfig struct {
		Routers     []Router
		BFDProfiles []BFDProfile
	}
	Router struct {
		ASN       uint32
		ID, VRF   string
		Neighbors []Neighbor
		Prefixes  []string
	}
	Neighbor struct {
		ASN                                                                    uint32
		DynamicASN                                                             DynamicASNMode
		Address, Interface, Password, BFDProfile                               string
		Port                                                                   *uint16
		PasswordSecret                                                         SecretReference
		HoldTime, KeepaliveTime, ConnectTime                                   *metav1.Duration
		EBGPMultiHop, EnableGracefulRestart, DisableMP, DualStackAddressFamily bool
		ToAdvertise                                                            Advertise
	}
	Advertise struct {
		Allowed                   AllowedOutPrefixes
		PrefixesWithLocalPref     []LocalPrefPrefixes
		PrefixesWithCommunity     []CommunityPrefixes
		PrefixesWithAsPathPrepend []AsPathPrependPrefixes
	}
	AllowedOutPrefixes struct{ Prefixes []string }
	LocalPrefPrefixes  struct {
		Prefixes  []string
		LocalPref uint32
	}
	CommunityPrefixes struct {
		Prefixes  []string
		Community string
	}
	AsPathPrependPrefixes struct {
		Prefixes      []string
		AsPathPrepend uint8
	}
	BFDProfile struct {
		Name                                                                          string
		ReceiveInterval, TransmitInterval, DetectMultiplier, EchoInterval, MinimumTTL *uint32
		EchoMode, PassiveMode                                                         *bool
	}
	SecretReference struct{ Name, Namespace string }
	DynamicASNMode  string
)

// DeepCopy is shallow.
func (c *FRRConfiguration) DeepCopy() *FRRConfiguration { out := *c; return &out }

// DeepCopyObject is shallow.
func (c *FRRConfiguration) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopyInto is shallow.
func (s *FRRConfigurationSpec) DeepCopyInto(out *FRRConfigurationSpec) { *out = *s }
