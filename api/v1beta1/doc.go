// Package v1beta1 holds the custom resources of group holdfast.dev, version
// v1beta1. Kinds, field names, defaults and meanings are MetalLB's where MetalLB
// has them, so that its manifests work after changing apiVersion. All kinds are
// cluster-scoped but FloatingIP, which belongs to a namespace. What one object can get wrong by itself is refused by CEL rules
// with a message that says what to do; what depends on other objects becomes the
// condition Valid on the object.
//
// +kubebuilder:object:generate=true
// +groupName=holdfast.dev
package v1beta1
