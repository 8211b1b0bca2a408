// Package v20170312 stands in for the routes of Tencent's cloud, whose module no proxy has. Flannel's backend
// tencent-vpc alone uses them: the lab's backends only compile with them.
package v20170312

import "errors"

var errNoCloud = errors.New("this flannel is compiled without Tencent's cloud")

// The types have the fields that flannel names.
type (
	Client struct{}
	Filter struct {
		Name   *string
		Values []*string
	}
	Route struct {
		DestinationCidrBlock, GatewayType, GatewayId, RouteType *string
		RouteId                                                 *uint64
		Enabled                                                 *bool
	}
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
	}
	DescribeRouteTablesRequest  struct{ Filters []*Filter }
	DescribeRouteTablesResponse struct {
		Response struct{ RouteTableSet []*RouteTable }
	}
	DeleteRoutesRequest struct {
		RouteTableId *string
		Routes       []*Route
	}
	CreateRoutesRequest struct {
		RouteTableId *string
		Routes       []*Route
	}
)

// NewClientWithSecretId returns no client: the backend reports the error of its first request.
func NewClientWithSecretId(string, string, string) (*Client, error) { return &Client{}, nil }

// NewDescribeRouteTablesRequest returns an empty request.
func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}

// NewDeleteRoutesRequest returns an empty request.
func NewDeleteRoutesRequest() *DeleteRoutesRequest { return &DeleteRoutesRequest{} }

// NewCreateRoutesRequest returns an empty request.
func NewCreateRoutesRequest() *CreateRoutesRequest { return &CreateRoutesRequest{} }

// DescribeRouteTables fails.
func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errNoCloud
}

// DeleteRoutes fails.
func (*Client) DeleteRoutes(*DeleteRoutesRequest) (any, error) { return nil, errNoCloud }

// CreateRoutes fails.
func (*Client) CreateRoutes(*CreateRoutesRequest) (any, error) { return nil, errNoCloud }
