package main

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// frrConfigurations is the name of FRR-K8s' resource.
const frrConfigurations = "frrconfigurations"

// FRRConfiguration is the part of FRR-K8s' kind that shows which program or user wrote it.
type FRRConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		NodeSelector metav1.LabelSelector `json:"nodeSelector"`
		BGP          struct {
			Routers []struct {
				Neighbors []struct {
					Address   string `json:"address"`
					Interface string `json:"interface"`
				} `json:"neighbors"`
			} `json:"routers"`
		} `json:"bgp"`
	} `json:"spec"`
}

// node returns the node whose speaker wrote the FRRConfiguration; "" if a user did.
func (c *FRRConfiguration) node() string {
	node, isOfOneNode := c.Spec.NodeSelector.MatchLabels[corev1.LabelHostname]
	if isOfOneNode && len(c.Spec.NodeSelector.MatchLabels) == 1 && c.Name == "metallb-"+node {
		return node
	}
	return ""
}

// step makes the step about an FRRConfiguration of a user.
func (c *FRRConfiguration) step(peers map[string]string) Step {
	step := Step{
		Name:    fmt.Sprintf("FRRConfiguration %s/%s", c.Namespace, c.Name),
		Verdict: Note,
		Text: "MetalLB did not write it, and nothing in Holdfast corresponds to it: FRR-K8s keeps it, so let FRR-K8s run, " +
			"or do without it",
	}

	for _, r := range c.Spec.BGP.Routers {
		for _, n := range r.Neighbors {
			router := cmp.Or(n.Address, n.Interface)
			peer, isShared := peers[router]
			if !isShared {
				continue
			}

			step.Verdict = Problem
			step.Text = fmt.Sprintf(
				"MetalLB did not write it, nothing in Holdfast corresponds to it, and its neighbor %s is the router "+
					"of BGPPeer %s, which accepts one session from a node: FRR-K8s keeps it",
				router,
				peer,
			)

			step.Do = fmt.Sprintf(
				"remove neighbor %s from FRRConfiguration %s/%s before step BGP, or leave BGP with MetalLB",
				router,
				c.Namespace,
				c.Name,
			)
		}
	}

	return step
}
