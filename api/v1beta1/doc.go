// Package v1beta1 holds the custom resources of group holdfast.dev, version
// v1beta1. Kinds, field names, defaults and meanings are the same as in MetalLB where
// MetalLB has them, so that its manifests work after a change of apiVersion. All kinds
// are cluster-scoped except FloatingIP, which is namespaced. CEL rules reject the
// mistakes that an object can contain by itself, with a message that says what to do.
// Mistakes that depend on other objects show in the condition Valid.
//
// +kubebuilder:object:generate=true
// +groupName=holdfast.dev
package v1beta1
