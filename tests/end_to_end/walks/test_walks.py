"""A new consumer, a new creator and the platform's staff reach their goals by what the screens say."""

from __future__ import annotations

import re
from pathlib import Path

import openai
import pypdfium2
import pytest
from playwright.sync_api import expect

from tests.end_to_end.walks import creator
from tests.end_to_end.walks import staff as backstage
from tests.end_to_end.walks.conftest import People
from tests.end_to_end.walks.customer import (
    BASE_MODEL,
    CARD_NAME,
    Customer,
    call,
    download,
    nano,
    printed_call,
    read_bill,
    sees_wallet,
)
from tests.end_to_end.walks.spans import Collector
from tests.end_to_end.walks.staff import Staff

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
PAID = 12_500_000_000  # nano-dollars, of the customer's top-up


def test_a_new_consumer_gets_from_the_landing_page_to_a_bill_that_is_what_the_answer_said(customer: Customer) -> None:
    person = customer.person
    person.follow("Overview")
    person.follow("Pick one")
    person.follow(BASE_MODEL, exact=False)
    answer = call(customer, printed_call(person))
    bill = read_bill(person)
    cost = answer.usage.cost_nano_usd
    assert nano(bill.charged) == sum(nano(line) for line in bill.lines) == cost > 0
    sees_wallet(person, PAID - cost)

    person.follow("Invoices")
    paper = person.page.get_by_role("link", name=re.compile("as PDF"))
    person.reloads_until(lambda: paper.count() == 1)
    pdf = pypdfium2.PdfDocument(download(person, "as PDF"))
    text = pdf[0].get_textpage().get_text_range()
    assert "Receipt of payment" in text and "Intarsia GmbH" in text and CARD_NAME in text and "12.50" in text
    person.follow("Statements")


@pytest.mark.deep
def test_a_call_is_one_trace_from_the_gateway_to_the_step_of_the_replica(
    customer: Customer, collector: Collector
) -> None:
    person = customer.person
    person.follow("Models")
    person.follow(BASE_MODEL, exact=False)
    printed = printed_call(person)
    answer = call(customer, printed).choices[0].message.content
    number = str(read_bill(person).number)
    below = {"queue", "prefill", "decode"}
    trace = collector.trace_of(number, wanted={"authenticate", "admit", "hold", "dispatch", "settle", "answer", *below})
    (replica,) = (one for one in trace.values() if one.span.parent_span_id == trace["dispatch"].span.span_id)
    assert {trace[name].span.parent_span_id for name in below} == {replica.span.span_id}
    assert {trace[name].service for name in below} == {replica.service} != {trace["dispatch"].service}
    sent = b"".join(collector.raw)
    (question,) = re.findall(r"'content': '(.+?)'", printed)
    assert question.encode() not in sent and answer.encode() not in sent and customer.key.encode() not in sent


@pytest.mark.deep
def test_a_new_creator_gets_from_the_landing_page_to_money_in_the_bank(
    people: People, staff: Staff, customer: Customer, tmp_path: Path
) -> None:
    owner, colleague = people("tina"), people("ben")
    creator.found_organization(owner)
    creator.invite(owner, colleague)
    colleague.follow("My models")
    machine = creator.Machine(colleague, tmp_path)
    machine.set_up()
    colleague.page.reload()
    machine.push()
    creator.fill_wallet(owner)
    colleague.page.reload()
    right, base = machine.measure()
    assert right > base
    creator.set_price(colleague)
    creator.publish(colleague)
    backstage.approve(staff, creator.MODEL)
    colleague.mail(f"{creator.SLUG}/my-model: version 1 is published")

    buyer = customer.person
    buyer.follow("Models")
    buyer.follow(creator.MODEL, exact=False)
    buyer.sees(f"on {creator.ROWS} rows")
    printed = printed_call(buyer)
    costs = [call(customer, printed).usage.cost_nano_usd for _ in range(2)]
    assert min(costs) > 20_000_000
    owner.follow("Earnings")
    earned = owner.page.get_by_role("row").filter(has_text=f"{creator.SLUG}/my-model@1")
    share = sum(costs) * 8 // 10  # and what the measurement paid them
    owner.reloads_until(lambda: earned.count() == 1 and nano(earned.get_by_role("cell").last.inner_text()) >= share)
    creator.set_up_payouts(owner)
    creator.pay_out(owner)


@pytest.mark.deep
def test_staff_with_a_second_factor_give_money_back_and_drain_a_replica(staff: Staff, customer: Customer) -> None:
    buyer, person = customer.person, staff.person
    buyer.follow("Models")
    buyer.follow(BASE_MODEL, exact=False)
    printed = printed_call(buyer)
    call(customer, printed)
    bill = read_bill(buyer)
    backstage.sign_in_again(staff)
    backstage.refund(staff, str(bill.number), "It answered about another adapter.")
    person.follow("Books and incidents")
    person.sees("balanced")
    person.sees("There are no open incidents.")

    person.follow("Fleet")
    person.press("Drain")
    expect(backstage.replica_state(staff)).to_have_text(re.compile("drain"))
    with pytest.raises(openai.APIStatusError) as refused:
        call(customer, printed)
    assert refused.value.status_code == 503
    person.press("Send it work again")
    expect(backstage.replica_state(staff)).to_have_text("live")
    call(customer, printed)
