package config

import corev1 "k8s.io/api/core/v1"

// Annotations of a Service that request an address or a pool. Holdfast's own take
// precedence; MetalLB's spellings mean the same, so that its Services work unchanged.
const (
	// AnnotationAddresses lists the requested addresses, at most one of each family.
	AnnotationAddresses = "holdfast.dev/addresses"
	// AnnotationPool names the requested pool.
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

// Annotations for other properties of a Service's addresses.
const (
	// AnnotationSharingKey lets Services with the same key share an address.
	AnnotationSharingKey = "holdfast.dev/sharing-key"
	// AnnotationFloatingIP names the FloatingIP that the Service claims, in the same namespace.
	AnnotationFloatingIP = "holdfast.dev/floating-ip"
	// AnnotationRenew replaces an address that the pools would not assign today; any value but "false" requests it.
	AnnotationRenew = "holdfast.dev/renew"
	// AnnotationInternal "true" requests an address of an Internal pool.
	AnnotationInternal = "holdfast.dev/internal"
	// AnnotationHostname is shown in the status beside each address.
	AnnotationHostname = "holdfast.dev/hostname"
	// AnnotationNodeSelector restricts the nodes that may announce the Service, in the syntax of kubectl --selector.
	AnnotationNodeSelector = "holdfast.dev/node-selector"

	// MetalLBSharingKey is MetalLB's AnnotationSharingKey.
	MetalLBSharingKey = "metallb.io/allow-shared-ip"
	// MetalLBSharingKeyOld is what MetalLB called it before version 0.14.
	MetalLBSharingKeyOld = "metallb.universe.tf/allow-shared-ip"
)

// Values of AnnotationInternalTraffic.
const (
	InternalAllow  = "Allow"
	InternalFilter = "Filter"
)

// Annotations that restrict access to a Service.
const (
	// AnnotationSourceRanges lists the allowed sources. Unlike spec.loadBalancerSourceRanges kube-proxy does
	// not read it, and it may contain host bits and spaces.
	AnnotationSourceRanges = "holdfast.dev/source-ranges"
	// AnnotationSourceRangesDeny lists the denied sources; it overrides all lists of allowed sources.
	AnnotationSourceRangesDeny = "holdfast.dev/source-ranges-deny"
	// AnnotationInternalTraffic says whether the lists apply to the cluster's own pods and nodes: InternalAllow or
	// InternalFilter.
	AnnotationInternalTraffic = "holdfast.dev/internal-traffic"
	// AnnotationConnectionLimit limits the concurrent connections to each port, on each node.
	AnnotationConnectionLimit = "holdfast.dev/connection-limit"
	// AnnotationRateLimit limits the new connections per second of one source to each port, on each node.
	AnnotationRateLimit = "holdfast.dev/rate-limit"
	// AnnotationLogDrops "true" turns on a sampled log of dropped packets.
	AnnotationLogDrops = "holdfast.dev/log-drops"

	// KubernetesSourceRanges preceded spec.loadBalancerSourceRanges, and is read if that is empty.
	KubernetesSourceRanges = corev1.AnnotationLoadBalancerSourceRangesKey
)
