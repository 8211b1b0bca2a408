package config

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
