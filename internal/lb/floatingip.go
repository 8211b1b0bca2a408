package lb

import (
	"net/netip"
	"time"
)

// FloatingIP is an address, or one of each family, that a namespace holds.
type FloatingIP struct {
	Key     Key
	UID     string
	Labels  map[string]string
	Created time.Time
	// Families wanted, never empty.
	Families []Family
	// Pool to assign from; "" is any.
	Pool string
	// Wanted are the requested addresses, at most one of each family: those of its spec, and those that it held
	// before its status was lost.
	Wanted []netip.Addr
	// Delete: the FloatingIP is deleted together with the Service that it is bound to.
	Delete bool
	// ServiceName is the only Service that may use it; "" is any.
	ServiceName string
	// ServiceGone: no Service of that name exists, of any type. Then any may use the FloatingIP.
	ServiceGone bool
	// Deleting: its addresses are released as soon as no Service uses them.
	Deleting bool
	// Problem says why it cannot be read; nil if it can.
	Problem *Problem
	// Addresses that it holds, by its status.
	Addresses []netip.Addr
	// Record and Recall are as those of a Service.
	Record, Recall Origins
	// BoundTo and BoundUID are the Service that used it when its status was last written; the zero Key is none.
	BoundTo  Key
	BoundUID string
}
