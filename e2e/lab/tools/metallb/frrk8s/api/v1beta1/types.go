// Package v1beta1 stands in for the types of FRR-K8s, whose version that MetalLB requires no proxy has, and whose
// version before lacks AsPathPrependPrefixes. It has the fields that MetalLB writes, with the names that they have in
// the API.
package v1beta1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AddToScheme adds the kind FRRConfiguration and its list.
func AddToScheme(s *runtime.Scheme) error {
	version := schema.GroupVersion{Group: "frrk8s.metallb.io", Version: "v1beta1"}
	s.AddKnownTypes(version, &FRRConfiguration{}, &FRRConfigurationList{})
	metav1.AddToGroupVersion(s, version)
	return nil
}

// FRRConfigurationList is what a watch begins with.
type FRRConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FRRConfiguration `json:"items"`
}

// FRRConfiguration is a part of the configuration of FRR on the nodes that it selects.
type FRRConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FRRConfigurationSpec `json:"spec,omitempty"`
}

// The types below are what MetalLB writes of it.
type (
	FRRConfigurationSpec struct {
		BGP          BGPConfig            `json:"bgp,omitempty"`
		NodeSelector metav1.LabelSelector `json:"nodeSelector,omitempty"`
	}
	BGPConfig struct {
		Routers     []Router     `json:"routers,omitempty"`
		BFDProfiles []BFDProfile `json:"bfdProfiles,omitempty"`
	}
	Router struct {
		ASN       uint32     `json:"asn"`
		ID        string     `json:"id,omitempty"`
		VRF       string     `json:"vrf,omitempty"`
		Neighbors []Neighbor `json:"neighbors,omitempty"`
		Prefixes  []string   `json:"prefixes,omitempty"`
	}
	Neighbor struct {
		ASN                    uint32           `json:"asn,omitempty"`
		DynamicASN             DynamicASNMode   `json:"dynamicASN,omitempty"`
		Address                string           `json:"address,omitempty"`
		Interface              string           `json:"interface,omitempty"`
		Port                   *uint16          `json:"port,omitempty"`
		Password               string           `json:"password,omitempty"`
		PasswordSecret         SecretReference  `json:"passwordSecret,omitempty"`
		HoldTime               *metav1.Duration `json:"holdTime,omitempty"`
		KeepaliveTime          *metav1.Duration `json:"keepaliveTime,omitempty"`
		ConnectTime            *metav1.Duration `json:"connectTime,omitempty"`
		EBGPMultiHop           bool             `json:"ebgpMultiHop,omitempty"`
		BFDProfile             string           `json:"bfdProfile,omitempty"`
		EnableGracefulRestart  bool             `json:"enableGracefulRestart,omitempty"`
		ToAdvertise            Advertise        `json:"toAdvertise,omitempty"`
		DisableMP              bool             `json:"disableMP,omitempty"`
		DualStackAddressFamily bool             `json:"dualStackAddressFamily,omitempty"`
	}
	Advertise struct {
		Allowed                   AllowedOutPrefixes      `json:"allowed,omitempty"`
		PrefixesWithLocalPref     []LocalPrefPrefixes     `json:"withLocalPref,omitempty"`
		PrefixesWithCommunity     []CommunityPrefixes     `json:"withCommunity,omitempty"`
		PrefixesWithAsPathPrepend []AsPathPrependPrefixes `json:"withAsPathPrepend,omitempty"`
	}
	AllowedOutPrefixes struct {
		Prefixes []string `json:"prefixes,omitempty"`
	}
	LocalPrefPrefixes struct {
		Prefixes  []string `json:"prefixes,omitempty"`
		LocalPref uint32   `json:"localPref,omitempty"`
	}
	CommunityPrefixes struct {
		Prefixes  []string `json:"prefixes,omitempty"`
		Community string   `json:"community,omitempty"`
	}
	AsPathPrependPrefixes struct {
		Prefixes      []string `json:"prefixes,omitempty"`
		AsPathPrepend uint8    `json:"asPathPrepend,omitempty"`
	}
	BFDProfile struct {
		Name             string  `json:"name"`
		ReceiveInterval  *uint32 `json:"receiveInterval,omitempty"`
		TransmitInterval *uint32 `json:"transmitInterval,omitempty"`
		DetectMultiplier *uint32 `json:"detectMultiplier,omitempty"`
		EchoInterval     *uint32 `json:"echoInterval,omitempty"`
		EchoMode         *bool   `json:"echoMode,omitempty"`
		PassiveMode      *bool   `json:"passiveMode,omitempty"`
		MinimumTTL       *uint32 `json:"minimumTtl,omitempty"`
	}
	SecretReference struct {
		Name      string `json:"name,omitempty"`
		Namespace string `json:"namespace,omitempty"`
	}
	DynamicASNMode string
)

// DeepCopy returns a copy.
func (c *FRRConfiguration) DeepCopy() *FRRConfiguration { return copied(c) }

// DeepCopyObject returns a copy.
func (c *FRRConfiguration) DeepCopyObject() runtime.Object { return copied(c) }

// DeepCopyObject returns a copy.
func (l *FRRConfigurationList) DeepCopyObject() runtime.Object { return copied(l) }

// DeepCopyInto copies to out.
func (s *FRRConfigurationSpec) DeepCopyInto(out *FRRConfigurationSpec) { *out = *copied(s) }

// copied copies what is JSON.
func copied[T any](in *T) *T {
	out := new(T)
	text, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		panic(err)
	}
	return out
}
