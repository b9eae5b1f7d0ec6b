"""Who is a member, and which servers hold which segments.

    placement          a table's keys cut into segments, and their servers chosen on a hash ring
    roster             ``Roster``: members and tables behind the view; ``Assignment``: replicas
    rebalance_plan     measures load, and plans moves that even out segments and load
    membership_client  a node's own side: hello, heartbeats, views
    groups             what worker groups may do; ``move_settings``: what an operator may set

Only the coordinator decides; all others get the view. Nothing here sends, sleeps, reads the time or
draws at random, so that all nodes with the same facts come to the same answer.
"""

PUBLIC = ("groups", "membership_client", "move_settings", "placement", "rebalance_plan", "roster")
