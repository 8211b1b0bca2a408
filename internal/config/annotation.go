package config

import corev1 "k8s.io/api/core/v1"

// Annotations of a Service that ask for something. Ours comes first; MetalLB's
// spellings map onto the same request, so that its Services work unchanged.
const (
	// AnnotationAddresses lists the addresses wanted, at most one of each family.
	AnnotationAddresses = "holdfast.dev/addresses"
	// AnnotationPool names the pool wanted.
	AnnotationPool = "holdfast.dev/pool"

	// MetalLBAddresses is MetalLB's AnnotationAddresses.
	MetalLBAddresses = "metallb.io/loadBalancerIPs"
	// MetalLBAddressesOld is what MetalLB called it before version 0.14.
	MetalLBAddressesOld = "metallb.universe.tf/loadBalancerIPs"
	// MetalLBPool is MetalLB's AnnotationPool.
	MetalLBPool = "metallb.io/address-pool"
	// MetalLBPoolOld is what MetalLB called it before version 0.14.
	MetalLBPoolOld = "metallb.universe.tf/address-pool"
)

// Annotations that ask for something else of an address.
const (
	// AnnotationSharingKey lets Services of one key share an address.
	AnnotationSharingKey = "holdfast.dev/sharing-key"
	// AnnotationFloatingIP names the FloatingIP of the namespace that the Service claims.
	AnnotationFloatingIP = "holdfast.dev/floating-ip"
	// AnnotationRenew exchanges an address that the pools would not give today; any value but "false" asks.
	AnnotationRenew = "holdfast.dev/renew"
	// AnnotationInternal "true" asks for an address of an Internal pool.
	AnnotationInternal = "holdfast.dev/internal"
	// AnnotationHostname is shown in the status in place of the addresses.
	AnnotationHostname = "holdfast.dev/hostname"
	// AnnotationNodeSelector restricts the nodes that may announce the Service, as kubectl's --selector is written.
	AnnotationNodeSelector = "holdfast.dev/node-selector"

	// MetalLBSharingKey is MetalLB's AnnotationSharingKey.
	MetalLBSharingKey = "metallb.io/allow-shared-ip"
	// MetalLBSharingKeyOld is what MetalLB called it before version 0.14.
	MetalLBSharingKeyOld = "metallb.universe.tf/allow-shared-ip"
)

// Annotations that say who may reach a Service.
const (
	// AnnotationSourceRanges lists who may come in; unlike spec.loadBalancerSourceRanges it is not read by
	// kube-proxy, and may hold host bits and spaces.
	AnnotationSourceRanges = "holdfast.dev/source-ranges"
	// AnnotationSourceRangesDeny lists who may not, whatever else says that they may.
	AnnotationSourceRangesDeny = "holdfast.dev/source-ranges-deny"
	// AnnotationConnectionLimit bounds the concurrent connections to each port, on each node.
	AnnotationConnectionLimit = "holdfast.dev/connection-limit"
	// AnnotationRateLimit bounds the new connections per second of one source to each port, on each node.
	AnnotationRateLimit = "holdfast.dev/rate-limit"
	// AnnotationLogDrops "true" asks for a sampled log of what is refused.
	AnnotationLogDrops = "holdfast.dev/log-drops"

	// KubernetesSourceRanges was there before spec.loadBalancerSourceRanges, and is read where that is empty.
	KubernetesSourceRanges = corev1.AnnotationLoadBalancerSourceRangesKey
)
